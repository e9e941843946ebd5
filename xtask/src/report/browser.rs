//! A browser without a window, driven by its own debugging protocol over two pipes: nothing listens, nothing is fetched.
//!
//! A library for this brings a web-socket client and types of the whole protocol; here it is a dozen calls.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::sh;

/// Programs that are known to do, and the flag that takes the window away.
const PROGRAMS: &[(&str, &str)] =
    &[("chromium-headless-shell", "--headless"), ("chromium", "--headless=new"), ("google-chrome", "--headless=new")];
/// The protocol is spoken over the descriptors 3 and 4.
const PIPES: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A browser with one page.
pub(super) struct Browser {
    child: Child,
    input: ChildStdin,
    answers: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// What the page said or did by itself since the last time that was asked.
    events: Vec<Value>,
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// `light` or `dark`.
    pub(super) scheme: &'static str,
    /// Of the window, pixels.
    pub(super) width: u32,
    /// Of the window, pixels.
    pub(super) height: u32,
}

impl Browser {
    /// Starts one. `None`: none is installed.
    pub(super) fn start(profile: &Path) -> Result<Option<Self>> {
        let Some((program, headless)) = PROGRAMS.iter().find(|(name, _)| sh::find(name).is_some()) else {
            return Ok(None);
        };
        let mut command = Command::new("sh");
        command.args(["-c", PIPES, program, headless, "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]);
        command.args(["--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| format!("cannot start {program}"))?;
        let input = child.stdin.take().context("no way to the browser")?;
        let output = BufReader::new(child.stdout.take().context("no way from the browser")?);
        let (sender, answers) = channel();
        thread::spawn(move || {
            let messages = output.split(0).map_while(Result::ok);
            messages.filter_map(|text| serde_json::from_slice(&text).ok()).try_for_each(|it: Value| sender.send(it))
        });
        let mut browser = Self { child, input, answers, session: None, last_id: 0, events: Vec::new() };
        browser.open_page()?;
        Ok(Some(browser))
    }

    fn open_page(&mut self) -> Result<()> {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}))?["targetId"].clone();
        let attached = self.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}))?;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Log", "Runtime"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(())
    }

    /// Loads a file, as somebody with this screen sees it.
    pub(super) fn load(&mut self, file: &Path, look: Look) -> Result<()> {
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": look.scheme}]});
        self.call("Emulation.setEmulatedMedia", scheme)?;
        let metrics =
            json!({"width": look.width, "height": look.height, "deviceScaleFactor": 1, "mobile": look.width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics)?;
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}))?;
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.receive()?;
            self.events.push(event);
        }
        Ok(())
    }

    /// The value of an expression in the page.
    pub(super) fn value(&mut self, expression: &str) -> Result<Value> {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", asked)?;
        if !answer["exceptionDetails"].is_null() {
            bail!("{expression}: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Clicks into the middle of an element, after it was brought into view.
    pub(super) fn click(&mut self, element: &str) -> Result<()> {
        let place = self.value(&format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ))?;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event)?;
        }
        Ok(())
    }

    /// Presses Enter.
    pub(super) fn enter(&mut self) -> Result<()> {
        for kind in ["keyDown", "keyUp"] {
            let key = json!({"type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13});
            self.call("Input.dispatchKeyEvent", key)?;
        }
        Ok(())
    }

    /// A picture of what is in view: PNG, in base64.
    pub(super) fn picture(&mut self) -> Result<String> {
        let answer = self.call("Page.captureScreenshot", json!({}))?;
        answer["data"].as_str().map(str::to_owned).context("no picture")
    }

    /// Complaints of the page (errors, refusals by its policy), and what it fetched beside itself.
    pub(super) fn complaints(&self) -> Vec<String> {
        let of = |method: &str| self.events.iter().filter(move |event| event["method"] == method).collect::<Vec<_>>();
        let said = of("Log.entryAdded").into_iter().map(|event| event["params"]["entry"]["text"].to_string());
        let thrown =
            of("Runtime.exceptionThrown").into_iter().map(|event| event["params"]["exceptionDetails"].to_string());
        let requests =
            of("Network.requestWillBeSent").into_iter().filter(|event| event["params"]["type"] != "Document");
        let fetched = requests.map(|event| format!("fetched {}", event["params"]["request"]["url"]));
        said.chain(thrown).chain(fetched).collect()
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.input.write_all(format!("{message}\0").as_bytes()).context("the browser has gone")?;
        loop {
            let answer = self.receive().with_context(|| method.to_owned())?;
            if answer["id"] != self.last_id {
                self.events.push(answer);
            } else if answer["error"].is_null() {
                return Ok(answer["result"].clone());
            } else {
                bail!("{method}: {}", answer["error"]["message"]);
            }
        }
    }

    fn receive(&self) -> Result<Value> {
        self.answers.recv_timeout(PATIENCE).context("no answer of the browser")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if self.call("Browser.close", json!({})).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
