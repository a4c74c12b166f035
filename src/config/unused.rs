//! Settings without an effect on the archive's store.

use super::settings;
use super::values::Config;
use crate::stores::distant_archive;

/// The settings that are only for archives in files, as section and key.
const FOR_FILES: [(&str, &str); 4] = [
    ("archive", "log_bytes_max"),
    ("archive", "head_bytes_max"),
    ("retention", "free_bytes_min"),
    ("retention", "erase_within"),
];

impl Config {
    /// Returns a line for each changed setting that affects only archives in files. Returns no line
    /// if the mirror is in a directory, since the mirror uses these settings, too.
    pub(crate) fn unused_without_files(&self) -> Vec<String> {
        let mirror = self.mirror.store.as_ref();
        let mirror = mirror.map(|store| distant_archive(store.secret(), &self.data));
        if matches!(mirror, Some(Ok(None))) {
            return Vec::new();
        }
        let default = Self::default();
        let mut lines = Vec::new();
        for section in settings::SECTIONS {
            let is_unused = |key: &str| FOR_FILES.contains(&(section.name, key));
            for setting in section.settings.iter().filter(|setting| is_unused(setting.key)) {
                if !(setting.is_same)(self, &default) {
                    lines.push(format!(
                        "[{}] `{}` has no effect: it is only for archives in files, and this archive \
                         is in another store",
                        section.name, setting.key
                    ));
                }
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::StoreAddress;

    #[test]
    fn a_bound_of_the_disk_is_unused_in_a_database() {
        let mut config = Config::default();
        assert!(config.unused_without_files().is_empty(), "the defaults are no wish");
        config.retention.free_bytes_min = Some(5_000_000_000);
        let said = config.unused_without_files();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("[retention] `free_bytes_min` has no effect"), "{said:?}");
        config.mirror.store = Some(StoreAddress::new("/var/lib/mirror".into()));
        assert!(config.unused_without_files().is_empty(), "the mirror is in files");
        config.mirror.store = Some(StoreAddress::new("postgres://me@host/base".into()));
        assert_eq!(config.unused_without_files(), said);
    }

    #[test]
    fn settings_for_files_are_in_the_table_of_settings() {
        for (name, key) in FOR_FILES {
            let section = settings::SECTIONS.iter().find(|section| section.name == name).unwrap();
            assert!(section.settings.iter().any(|setting| setting.key == key), "[{name}] {key}");
        }
    }
}
