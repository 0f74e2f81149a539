//! `ftcache trace convert FILE OUT`: routing of another form, or under another compression, as an ftr file.

use std::path::PathBuf;

use super::{Input, form_of, write};
use crate::Failure;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// What to write: .ftr or .ftr.zst
    #[arg(value_name = "OUT")]
    target: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    // Before a long read, and before anything is overwritten.
    let form = form_of(&arguments.target)?;
    write(&arguments.input.read()?, &arguments.target, form, out)
}
