//! Recordings of scenarios: makes them small, and removes names of the machine.

pub mod shrink;
mod tidy;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use tracer_testbed::options::Scratch;

/// Replays recordings with the tracer beside this program.
#[derive(Debug)]
pub struct Replayer {
    tracer: PathBuf,
    scratch: Scratch,
}

impl Replayer {
    pub fn new(tracer: PathBuf) -> Result<Self> {
        Ok(Self { tracer, scratch: Scratch::new()? })
    }

    /// The verdicts of a replay, without `seq` and `revises`. Those also count records about other processes.
    fn verdicts_of(&self, recording: &str) -> Result<Vec<Value>> {
        let input = self.scratch.path().join("observations.ndjson");
        std::fs::write(&input, recording).with_context(|| format!("write {}", input.display()))?;
        let mut replay = Command::new(&self.tracer);
        let output = replay.env_clear().arg("replay").arg(&input).args(["-o", "json"]).output().context("tracer")?;
        ensure!(output.status.success(), "tracer replay: {}", String::from_utf8_lossy(&output.stderr).trim());
        let records = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        let mut verdicts: Vec<Value> = records.collect::<Result<_, _>>().context("records of a replay")?;
        verdicts.retain(|record| record["type"] == "verdict");
        for fields in verdicts.iter_mut().filter_map(Value::as_object_mut) {
            fields.retain(|name, _| name != "seq" && name != "revises");
        }
        Ok(verdicts)
    }
}

/// The recording of a scenario in a folder of `tests/recordings`.
pub fn file(folder: &Path, scenario: &str) -> PathBuf {
    folder.join(format!("{scenario}.ndjson.gz"))
}

pub fn unpacked(recording: &Path) -> Result<String> {
    let file = File::open(recording).with_context(|| format!("open {}", recording.display()))?;
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).with_context(|| format!("unpack {}", recording.display()))?;
    Ok(text)
}

/// Compresses a recording. The file appears only when it is complete.
pub fn pack(text: &str, to: &Path) -> Result<()> {
    let part = to.with_extension("part");
    let file = File::create(&part).with_context(|| format!("create {}", part.display()))?;
    let mut packer = GzEncoder::new(file, Compression::best());
    packer.write_all(text.as_bytes())?;
    packer.finish()?;
    std::fs::rename(&part, to).with_context(|| to.display().to_string())
}
