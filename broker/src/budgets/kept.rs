//! The file in which what operators set outlives the broker.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::settings::{BadSetting, RunTime, run_time};

const NAME: &str = "budgets.toml";

/// The file, in the broker's state directory.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    file: PathBuf,
}

impl Kept {
    /// That of this directory, which is made where it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn within(directory: &Path) -> Result<Self, BadSetting> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| {
            let why = "the directory for what is set at run time cannot be made";
            BadSetting(format!(
                "{}: {why}: {error}; name another one with --state DIRECTORY",
                directory.display()
            ))
        })?;
        Ok(Self { file: directory.join(NAME) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// What is kept; nothing where there is no file yet.
    ///
    /// # Errors
    /// When the file cannot be read or makes no sense.
    pub(crate) fn read(&self) -> Result<RunTime, BadSetting> {
        let place = self.file.display();
        let read = match fs::read_to_string(&self.file) {
            Ok(text) => run_time::parse(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RunTime::new()),
            Err(error) => Err(error.to_string()),
        };
        read.map_err(|why| {
            BadSetting(format!(
                "{place}: the budgets set at run time cannot be read: {why}; correct the file or move it away"
            ))
        })
    }

    /// Keeps this instead: all of it or, after a failure or a crash, what was there.
    ///
    /// # Errors
    /// When the file system refuses.
    pub(crate) fn write(&self, run_time: &RunTime) -> io::Result<()> {
        let fresh = self.file.with_extension("toml.new");
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(run_time::text(run_time).as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &self.file)?;
        // The name is durable when its directory is.
        self.file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Account, Key, Table};

    #[test]
    fn what_is_written_is_read_and_a_broken_file_is_named() {
        let place = tempfile::tempdir().expect("a folder");
        let kept = Kept::within(&place.path().join("a/b")).expect("made");
        assert_eq!(kept.read(), Ok(RunTime::new()));
        let mut table = Table::default();
        table.set(Key::Limit, "2GiB").expect("sound");
        let run_time = vec![(Account::Host, table)];
        kept.write(&run_time).expect("written");
        assert_eq!(kept.read(), Ok(run_time));
        fs::write(kept.path(), "[host]\nlimit = 3").expect("written");
        let why = kept.read().expect_err("it makes no sense").to_string();
        assert!(why.contains("budgets.toml") && why.contains("line 2"), "{why}");
    }
}
