//! Where NVRTC may be: already loaded, in Python packages, in a toolkit, on the loader's path.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A library to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub place: LoadTarget,
    /// How it was found, as text.
    pub found: String,
}

/// What to hand to the loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoadTarget {
    /// Only if it is in the process already. A path, or a bare name.
    Loaded(PathBuf),
    /// This file.
    File(PathBuf),
    /// Whatever the loader finds by this name.
    Name(&'static str),
}

/// Names the loader may know NVRTC by, newest first.
#[cfg(not(windows))]
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Names the loader may know NVRTC by, newest first.
#[cfg(windows)]
const NAMES: [&str; 2] = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];

/// What decides where to look: environment variables, paths and loaded libraries of the process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessEnvironment {
    /// Libraries of that name in the process.
    pub loaded: Vec<PathBuf>,
    pub virtual_env: Option<PathBuf>,
    pub conda_prefix: Option<PathBuf>,
    pub cuda_home: Option<PathBuf>,
    pub cuda_path: Option<PathBuf>,
    pub home: Option<PathBuf>,
    pub path: OsString,
    /// How the running program was called: in a virtual environment this is the link, `executable` its target.
    pub called_as: Option<PathBuf>,
    pub executable: Option<PathBuf>,
    /// Where toolkits are installed by default.
    pub toolkits: Vec<PathBuf>,
}

impl ProcessEnvironment {
    pub fn of_process() -> Self {
        let variable = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        ProcessEnvironment {
            loaded: loaded_libraries(),
            virtual_env: variable("VIRTUAL_ENV"),
            conda_prefix: variable("CONDA_PREFIX"),
            cuda_home: variable("CUDA_HOME"),
            cuda_path: variable("CUDA_PATH"),
            home: variable("HOME"),
            path: std::env::var_os("PATH").unwrap_or_default(),
            called_as: std::env::args_os().next().map(PathBuf::from),
            executable: std::env::current_exe().ok(),
            toolkits: vec!["/usr/local/cuda".into()],
        }
    }

    /// The libraries to try, best first, and the places where there is none.
    pub fn candidates(&self) -> (Vec<Candidate>, Vec<String>) {
        let mut search = Search::default();
        let in_process = "already loaded in this process";
        for path in &self.loaded {
            search.add(LoadTarget::Loaded(path.clone()), in_process.into());
        }
        if cfg!(unix) {
            for name in NAMES {
                search.add(LoadTarget::Loaded(name.into()), in_process.into());
            }
            for prefix in self.python_prefixes() {
                for site in site_packages(&prefix) {
                    for package in ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"] {
                        search.directory(&site.join(package), "pip package");
                    }
                }
            }
            let toolkits = [
                ("CONDA_PREFIX", &self.conda_prefix),
                ("CUDA_HOME", &self.cuda_home),
                ("CUDA_PATH", &self.cuda_path),
            ];
            let named = toolkits
                .into_iter()
                .filter_map(|(name, root)| Some((name, root.as_ref()?)));
            let usual = self.toolkits.iter().map(|root| ("CUDA toolkit", root));
            for (name, root) in named.chain(usual) {
                search.directory(&root.join("lib64"), name);
                search.directory(&root.join("lib"), name);
                for target in subdirectories(&root.join("targets"), "") {
                    search.directory(&target.join("lib"), name);
                }
            }
        }
        for name in NAMES {
            search.add(LoadTarget::Name(name), "the loader's path".into());
        }
        (search.candidates, search.without)
    }

    /// Where the running Python, and after it those on `PATH`, keep their packages.
    fn python_prefixes(&self) -> Vec<PathBuf> {
        let mut prefixes = Vec::new();
        prefixes.extend(self.virtual_env.clone());
        prefixes.extend(self.conda_prefix.clone());
        let running = [&self.called_as, &self.executable];
        let mut pythons: Vec<PathBuf> = running.into_iter().flatten().cloned().collect();
        pythons.retain(|path| file_name(path).starts_with("python"));
        let bare = |path: &Path| path.components().count() == 1;
        let mut names: Vec<String> = pythons
            .iter()
            .filter(|path| bare(path))
            .map(|path| file_name(path))
            .collect();
        names.extend(["python3".into(), "python".into()]);
        pythons.retain(|path| !bare(path));
        // All of them: the first may be a version manager's script, with no packages beside it.
        for name in names {
            pythons.extend(
                std::env::split_paths(&self.path)
                    .map(|directory| directory.join(&name))
                    .filter(|path| path.is_absolute() && path.is_file()),
            );
        }
        for python in pythons {
            // A virtual environment's python is a link; the packages of what it points to come second.
            let target = python.canonicalize().ok();
            for path in [Some(python), target].into_iter().flatten() {
                let prefix = path.parent().and_then(Path::parent);
                prefixes.extend(prefix.map(Path::to_path_buf));
                // Debian's pip installs for the system's Python there.
                if prefix == Some(Path::new("/usr")) {
                    prefixes.push("/usr/local".into());
                }
            }
        }
        prefixes.extend(self.home.as_ref().map(|home| home.join(".local")));
        let mut seen = HashSet::new();
        prefixes.retain(|prefix| seen.insert(prefix.clone()));
        prefixes
    }
}

#[derive(Default)]
struct Search {
    candidates: Vec<Candidate>,
    without: Vec<String>,
    /// A toolkit is often reached by several links.
    seen: HashSet<PathBuf>,
}

impl Search {
    fn add(&mut self, place: LoadTarget, found: String) {
        self.candidates.push(Candidate { place, found });
    }

    /// Adds the NVRTCs of a directory, newest first.
    fn directory(&mut self, directory: &Path, found: &str) {
        let mut libraries: Vec<(u32, PathBuf)> = files(directory)
            .into_iter()
            .filter_map(|path| Some((major_of(&file_name(&path), "libnvrtc")?, path)))
            .collect();
        libraries.sort_by(|a, b| b.cmp(a));
        if libraries.is_empty() {
            self.without
                .push(format!("{}: no libnvrtc.so", directory.display()));
        }
        for (_, path) in libraries {
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            if self.seen.insert(real) {
                let found = format!("{found} in {}", directory.display());
                self.add(LoadTarget::File(path), found);
            }
        }
    }
}

/// The libraries with NVRTC's built-in functions that belong to an NVRTC: beside it, or beside what it links to.
///
/// The 13.0 wheel's NVRTC does not look for them in its own directory, so they are loaded first.
pub(super) fn builtins_of(library: &Path) -> Vec<PathBuf> {
    let real = library.canonicalize().ok();
    let mut found = Vec::new();
    for library in [Some(library), real.as_deref()].into_iter().flatten() {
        let major = major_of(&file_name(library), "libnvrtc");
        for path in library.parent().map(files).unwrap_or_default() {
            let other = major_of(&file_name(&path), "libnvrtc-builtins");
            // Several toolkits may share a directory; another's built-ins are of no use.
            let fits = match (major, other) {
                (_, None) => false,
                (None | Some(0), _) | (_, Some(0)) => true,
                (major, other) => major == other,
            };
            if fits && !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

/// The major version in `<stem>.so.13.0`, 0 for `<stem>.so`, nothing for another file.
///
/// That leaves out `libnvrtc.alt.so.13`, a second compiler for other hosts.
fn major_of(name: &str, stem: &str) -> Option<u32> {
    match name.strip_prefix(stem)?.strip_prefix(".so")? {
        "" => Some(0),
        version => version.strip_prefix('.')?.split('.').next()?.parse().ok(),
    }
}

/// Whether this is the file name of an NVRTC; wheels may put a hash into it.
fn names_nvrtc(name: &str) -> bool {
    name.starts_with("libnvrtc")
        && name.contains(".so")
        && !name.starts_with("libnvrtc-builtins")
        && !name.contains(".alt.")
}

/// NVRTCs mapped into this process.
#[cfg(target_os = "linux")]
pub(super) fn loaded_libraries() -> Vec<PathBuf> {
    mapped(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// NVRTCs mapped into this process: not known on this system.
#[cfg(not(target_os = "linux"))]
pub(super) fn loaded_libraries() -> Vec<PathBuf> {
    Vec::new()
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn mapped(maps: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        let Some(path) = line.find('/').map(|start| Path::new(&line[start..])) else {
            continue;
        };
        if names_nvrtc(&file_name(path)) && !paths.iter().any(|seen| seen == path) {
            paths.push(path.to_path_buf());
        }
    }
    paths
}

/// `lib/python3.*/site-packages` and its variants, newest Python first.
fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let mut sites = Vec::new();
    for lib in ["lib", "lib64"] {
        for python in subdirectories(&prefix.join(lib), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let site = python.join(packages);
                if site.is_dir() {
                    sites.push(site);
                }
            }
        }
    }
    sites
}

fn subdirectories(directory: &Path, start: &str) -> Vec<PathBuf> {
    let mut found = files(directory);
    found.retain(|path| file_name(path).starts_with(start) && path.is_dir());
    found.sort_by(|a, b| b.cmp(a));
    found
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;

    fn put(root: &Path, paths: &[&str]) {
        for path in paths {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    fn found_in(surroundings: &ProcessEnvironment, root: &Path) -> Vec<String> {
        let (candidates, _) = surroundings.candidates();
        let relative = |candidate: &Candidate| match &candidate.place {
            LoadTarget::File(path) => Some(path.strip_prefix(root).ok()?.display().to_string()),
            _ => None,
        };
        candidates.iter().filter_map(relative).collect()
    }

    #[test]
    fn versions_are_read_from_file_names() {
        for (name, expected) in [
            ("libnvrtc.so", Some(0)),
            ("libnvrtc.so.13", Some(13)),
            ("libnvrtc.so.12.4.127", Some(12)),
            ("libnvrtc.alt.so.13", None),
            ("libnvrtc-builtins.so.13.0", None),
            ("libnvrtc.so.old", None),
            ("libnvrtc_static.a", None),
        ] {
            assert_eq!(major_of(name, "libnvrtc"), expected, "{name}");
        }
    }

    #[test]
    fn mapped_libraries_are_read_from_the_process_map() {
        let maps = "7f00-7f01 r--p 00000000 08:01 42   /opt/my env/libnvrtc.so.13\n\
                    7f01-7f02 r-xp 00001000 08:01 42   /opt/my env/libnvrtc.so.13\n\
                    7f02-7f03 r-xp 00001000 08:01 43   /opt/my env/libnvrtc-builtins.so.13.0\n\
                    7f03-7f04 r-xp 00001000 08:01 44   /opt/torch/lib/libnvrtc-b51b459d.so.12\n\
                    7f04-7f05 rw-p 00000000 00:00 0    [heap]\n\
                    7f05-7f06 rw-p 00000000 00:00 0\n";
        let expected = [
            "/opt/my env/libnvrtc.so.13",
            "/opt/torch/lib/libnvrtc-b51b459d.so.12",
        ];
        assert_eq!(mapped(maps), expected.map(PathBuf::from));
    }

    #[test]
    fn what_is_loaded_comes_before_packages_before_toolkits_before_the_loader() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(
            root,
            &[
                "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.alt.so.13",
                "home/lib64/libnvrtc.so.13",
                "home/lib64/libnvrtc.so.12",
                "path/targets/sbsa-linux/lib/libnvrtc.so",
                "usual/lib64/libnvrtc.so.13.0.88",
            ],
        );
        let surroundings = ProcessEnvironment {
            loaded: vec!["/loaded/libnvrtc.so.13".into()],
            virtual_env: Some(root.join("venv")),
            cuda_home: Some(root.join("home")),
            cuda_path: Some(root.join("path")),
            toolkits: vec![root.join("usual")],
            ..ProcessEnvironment::default()
        };
        assert_eq!(
            found_in(&surroundings, root),
            [
                "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "home/lib64/libnvrtc.so.13",
                "home/lib64/libnvrtc.so.12",
                "path/targets/sbsa-linux/lib/libnvrtc.so",
                "usual/lib64/libnvrtc.so.13.0.88",
            ]
        );
        let (candidates, without) = surroundings.candidates();
        let loaded = LoadTarget::Loaded("/loaded/libnvrtc.so.13".into());
        assert_eq!(candidates[0].place, loaded);
        assert_eq!(candidates.last().unwrap().place, LoadTarget::Name(NAMES[2]));
        assert!(without.iter().any(|place| place.contains("home/lib: no")));
    }

    #[test]
    fn one_library_behind_several_links_is_tried_once() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(root, &["cuda-13/lib64/libnvrtc.so.13.0.88"]);
        let lib = root.join("cuda-13/lib64");
        std::os::unix::fs::symlink("libnvrtc.so.13.0.88", lib.join("libnvrtc.so.13")).unwrap();
        std::os::unix::fs::symlink("libnvrtc.so.13", lib.join("libnvrtc.so")).unwrap();
        std::os::unix::fs::symlink("cuda-13", root.join("cuda")).unwrap();
        let surroundings = ProcessEnvironment {
            cuda_home: Some(root.join("cuda")),
            toolkits: vec![root.join("cuda-13")],
            ..ProcessEnvironment::default()
        };
        assert_eq!(found_in(&surroundings, root).len(), 1);
    }

    #[test]
    fn a_python_called_through_a_link_brings_both_sets_of_packages() {
        let root = tempfile::tempdir().unwrap();
        let root = &root.path().canonicalize().unwrap();
        let venv = "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13";
        let base = "base/lib/python3.12/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
        put(root, &[venv, base, "base/bin/python3.12", "venv/bin/other"]);
        let link = root.join("venv/bin/python");
        std::os::unix::fs::symlink(root.join("base/bin/python3.12"), &link).unwrap();

        let running = ProcessEnvironment {
            called_as: Some(link),
            executable: Some(root.join("base/bin/python3.12")),
            ..ProcessEnvironment::default()
        };
        assert_eq!(found_in(&running, root), [venv, base]);

        let on_path = ProcessEnvironment {
            path: root.join("venv/bin").into(),
            called_as: Some("fourtap".into()),
            ..ProcessEnvironment::default()
        };
        assert_eq!(found_in(&on_path, root), [venv, base]);

        let bare = ProcessEnvironment {
            path: root.join("venv/bin").into(),
            called_as: Some("python".into()),
            ..ProcessEnvironment::default()
        };
        assert_eq!(found_in(&bare, root), [venv, base]);
    }

    #[test]
    fn builtins_are_those_of_the_same_major_version() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(
            root,
            &[
                "lib/libnvrtc.so.13",
                "lib/libnvrtc-builtins.so.13.0",
                "lib/libnvrtc-builtins.so.12.8",
                "lib/libnvrtc-builtins.alt.so.13.0",
            ],
        );
        let expected = [root.join("lib/libnvrtc-builtins.so.13.0")];
        assert_eq!(builtins_of(&root.join("lib/libnvrtc.so.13")), expected);
        fs::create_dir(root.join("elsewhere")).unwrap();
        let link = root.join("elsewhere/nvrtc.so");
        std::os::unix::fs::symlink(root.join("lib/libnvrtc.so.13"), &link).unwrap();
        assert_eq!(file_name(&builtins_of(&link)[0]), file_name(&expected[0]));
    }
}
