//! What the program finds where it looks for a CUDA driver: the emulated one, or none.

use ftcache_cuda_emu::client::Emulator;

use super::*;

/// A folder for the library path, deleted at the end.
pub(crate) struct Drivers(PathBuf);

impl Drivers {
    fn new(put: impl Fn(&Path)) -> Self {
        let folder = folder("drivers");
        // Both names are tried.
        ["libcuda.so.1", "libcuda.so"].iter().for_each(|name| put(&folder.join(name)));
        Self(folder)
    }

    pub(crate) fn emulated() -> Self {
        Self::new(|path| std::os::unix::fs::symlink(Emulator::library_path(), path).unwrap())
    }

    /// Files that are no library, so that a driver of the machine's is not found behind them.
    pub(crate) fn none() -> Self {
        Self::new(|path| std::fs::write(path, "no library").unwrap())
    }

    /// A program that finds these.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.0);
        command
    }

    /// What a run of ours printed, paths cut; and whether it succeeded.
    pub(crate) fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> (String, bool) {
        let mut command = self.command(env!("CARGO_BIN_EXE_ftcache"));
        command.args(arguments).envs(environment.iter().copied());
        let (text, success) = printed(&mut command);
        (without_paths(text, arguments), success)
    }
}

impl Drop for Drivers {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
