//! The packs of this process: where they are, and which is asked first.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, RwLock};

use super::folder::{PackFolder, warn};
use super::{JitError, Pack, Program};

/// The machine code of a program as packs have it; `None` if none does. They are asked in this order: the pack, or folder of
/// packs, that `FOURTAP_PACK` names; the pack given to [`set_pack`]; the folder given to [`set_pack_folder`]. With
/// `FOURTAP_PACK=off` none is.
///
/// A pack that was named and cannot be read is an error; of a folder, a reason to compile.
pub fn packed(program: &Program) -> Result<Option<Vec<u8>>, JitError> {
    let named = match named()? {
        Named::Off => return Ok(None),
        Named::Nothing => None,
        Named::Pack(pack) => pack.find(program)?,
        Named::Folder(folder) => folder.find(program),
    };
    if named.is_some() {
        return Ok(named);
    }
    let pack = read(&PACK);
    if let Some(pack) = pack
        && let Some(code) = pack.find(program)?
    {
        return Ok(Some(code));
    }
    Ok(read(&FOLDER).and_then(|folder| folder.get()?.find(program)))
}

/// Makes [`packed`] look into a pack. Replaces the pack of an earlier call.
pub fn set_pack(pack: Option<Arc<Pack>>) {
    write(&PACK, pack);
}

/// Makes [`packed`] look into a folder of packs, as `fourtap bake --usual` and the Python package fourtap-kernels make them.
/// Replaces the folder of an earlier call.
///
/// The folder is opened when a kernel is first needed. One that is not this version's, or is damaged, is ignored with a
/// warning.
pub fn set_pack_folder(path: Option<PathBuf>) {
    let folder = path.map(|path| LazyFolder {
        path,
        opened: OnceLock::new(),
    });
    write(&FOLDER, folder.map(Arc::new));
}

/// The folder of packs that [`packed`] looks into, if there is one; it may not be usable.
pub fn pack_folder() -> Option<PathBuf> {
    match named_path() {
        Some(path) if is_off(&path) => None,
        Some(path) if path.is_dir() => Some(path),
        _ => read(&FOLDER).map(|folder| folder.path.clone()),
    }
}

static PACK: RwLock<Option<Arc<Pack>>> = RwLock::new(None);
static FOLDER: RwLock<Option<Arc<LazyFolder>>> = RwLock::new(None);

fn read<T>(place: &RwLock<Option<Arc<T>>>) -> Option<Arc<T>> {
    let guard = place.read();
    guard
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .clone()
}

fn write<T>(place: &RwLock<Option<Arc<T>>>, value: Option<Arc<T>>) {
    let guard = place.write();
    *guard.unwrap_or_else(|poisoned| poisoned.into_inner()) = value;
}

/// A folder of packs that is opened once; that it cannot be is said once.
struct LazyFolder {
    path: PathBuf,
    opened: OnceLock<Option<PackFolder>>,
}

impl LazyFolder {
    fn get(&self) -> Option<&PackFolder> {
        let open = || PackFolder::open(&self.path).inspect_err(warn).ok();
        self.opened.get_or_init(open).as_ref()
    }
}

/// What `FOURTAP_PACK` names.
enum Named {
    Nothing,
    Off,
    Pack(Pack),
    Folder(PackFolder),
}

fn named() -> Result<&'static Named, JitError> {
    static NAMED: OnceLock<Result<Named, JitError>> = OnceLock::new();
    let open = || match named_path() {
        None => Ok(Named::Nothing),
        Some(path) if is_off(&path) => Ok(Named::Off),
        Some(path) if path.is_dir() => Ok(match PackFolder::open(&path).inspect_err(warn) {
            Ok(folder) => Named::Folder(folder),
            Err(_) => Named::Nothing,
        }),
        Some(path) => Pack::open(&path).map(Named::Pack),
    };
    NAMED.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn named_path() -> Option<PathBuf> {
    let path = std::env::var_os("FOURTAP_PACK").filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

fn is_off(path: &Path) -> bool {
    path.as_os_str() == "off"
}
