//! One file per hook family; `ports` has no program, `state` calls it. Each program is named after the
//! kernel function it sits on, with its form in front where there are several; the forms share one body.

mod answer;
mod connect;
mod drop;
mod icmp;
mod ipvs;
mod link;
mod netns;
mod open;
mod ports;
mod prober;
mod queue;
mod reset;
mod state;
mod tls;
