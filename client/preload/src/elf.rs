//! Looks up a symbol in a library that is loaded, by its ELF tables.
//!
//! This library exports `dlsym` and `dlvsym`, so that asking either of them for the real ones would come back here.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::NonNull;

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// One entry of a dynamic section.
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// A loaded object, as the loader lists it for debuggers: `link_map`.
#[repr(C)]
struct Object {
    base: u64,
    path: *const c_char,
    dynamic: *const Dynamic,
    next: *const Object,
}

/// `r_debug`
#[repr(C)]
struct Loaded {
    version: c_int,
    first: *const Object,
}

unsafe extern "C" {
    static _r_debug: Loaded;
}

/// The address of a symbol that one of these libraries defines, in the order in which they were loaded. A library is
/// named by the beginning of its file's name.
///
/// The loader's list is read as it is: `dl_iterate_phdr` may be another library's, too, which asks for symbols before it can
/// answer (AddressSanitizer's does). These libraries come with the program and stay.
pub(crate) fn find(libraries: &[&str], symbol: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the loader has filled it in before any code of the program runs.
    let mut next = unsafe { (&raw const _r_debug.first).read_volatile() };
    while !next.is_null() {
        // SAFETY: an object of the loader's list, and its name is a string or null.
        let (object, named) = unsafe { (&*next, is_named(&*next, libraries)) };
        if named {
            // SAFETY: the object is loaded, and stays.
            let found = unsafe { Tables::of(object.base, object.dynamic)?.find(symbol) };
            if found.is_some() {
                return found;
            }
        }
        next = object.next;
    }
    None
}

/// # Safety
/// The object is of the loader's list.
unsafe fn is_named(object: &Object, libraries: &[&str]) -> bool {
    if object.path.is_null() {
        return false;
    }
    let (mut file, mut at) = (object.path, object.path);
    // SAFETY: the caller's promise: the path is a string, which ends with a zero.
    unsafe {
        while at.read_volatile() != 0 {
            at = at.add(1);
            if at.sub(1).read_volatile() == b'/' as c_char {
                file = at;
            }
        }
        libraries.iter().any(|library| begins(file, library.as_bytes()))
    }
}

/// Whether a string begins so. Calls nothing: what compares bytes may be a sanitizer's, which asks for symbols before it can do
/// that.
///
/// # Safety
/// It is a string, and the beginning has no zero but at its end.
unsafe fn begins(string: *const c_char, with: &[u8]) -> bool {
    // SAFETY: the caller's promise; nothing is read behind the first difference.
    (0..with.len()).all(|nth| unsafe { string.cast::<u8>().add(nth).read_volatile() } == with[nth])
}

/// Whether the object that an address is in defines one of these symbols.
pub(crate) fn defines(at: *const c_void, symbols: &[&CStr]) -> bool {
    let mut question = (at as u64, symbols, false);
    // SAFETY: the callback takes what the loader hands it, and `question` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(ask), (&raw mut question).cast()) };
    question.2
}

unsafe extern "C" fn ask(info: *mut libc::dl_phdr_info, _size: usize, question: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid record for the time of the call; `question` is `defines`' own.
    let (info, question) = unsafe { (&*info, &mut *question.cast::<(u64, &[&CStr], bool)>()) };
    // SAFETY: the loader's array has that many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let offset = question.0.wrapping_sub(info.dlpi_addr);
    let within = |header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && offset.wrapping_sub(header.p_vaddr) < header.p_memsz
    };
    if !headers.iter().any(within) {
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return 1 };
    let dynamic = (info.dlpi_addr + dynamic.p_vaddr) as *const Dynamic;
    // SAFETY: the object is loaded, and the loader does not unload it during the walk.
    if let Some(tables) = unsafe { Tables::of(info.dlpi_addr, dynamic) } {
        // SAFETY: as above.
        question.2 = question.1.iter().any(|symbol| unsafe { tables.find(symbol) }.is_some());
    }
    1
}

/// The tables of a loaded object that a look-up needs.
struct Tables {
    base: u64,
    strings: *const c_char,
    symbols: *const libc::Elf64_Sym,
    hash: *const u32,
}

impl Tables {
    /// # Safety
    /// They are of a loaded object.
    unsafe fn of(base: u64, mut entry: *const Dynamic) -> Option<Self> {
        let (mut strings, mut symbols, mut hash) = (0, 0, 0);
        // SAFETY: a dynamic section ends with an entry whose tag is zero.
        while unsafe { (*entry).tag } != 0 {
            // SAFETY: as above. The loader has made addresses of most values; where not they are offsets.
            let Dynamic { tag, value } = unsafe { entry.read() };
            let address = if value < base { base + value } else { value };
            match tag {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => hash = address,
                _ => {}
            }
            // SAFETY: not the last entry, so that there is a next one.
            entry = unsafe { entry.add(1) };
        }
        let complete = strings != 0 && symbols != 0 && hash != 0;
        complete.then_some(Self {
            base,
            strings: strings as *const c_char,
            symbols: symbols as *const libc::Elf64_Sym,
            hash: hash as *const u32,
        })
    }

    /// The symbol, by the GNU hash table: buckets of chains whose last hash has its lowest bit set.
    ///
    /// # Safety
    /// The tables are those of a loaded object.
    unsafe fn find(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        let wanted = symbol
            .to_bytes()
            .iter()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the table begins with four numbers, then the Bloom filter, the buckets and the chains.
        unsafe {
            let (buckets, first, words) = (
                *self.hash,
                *self.hash.add(1),
                *self.hash.add(2) as usize * (size_of::<u64>() / size_of::<u32>()),
            );
            let bucket = self.hash.add(4 + words);
            let chains = bucket.add(buckets as usize);
            let mut at = *bucket.add((wanted % buckets) as usize);
            while at >= first && at != 0 {
                let hash = *chains.add((at - first) as usize);
                let found = &*self.symbols.add(at as usize);
                let name = self.strings.add(found.st_name as usize);
                if hash | 1 == wanted | 1 && begins(name, symbol.to_bytes_with_nul()) && found.st_shndx != 0 {
                    return NonNull::new((self.base + found.st_value) as *mut c_void);
                }
                if hash & 1 == 1 {
                    return None;
                }
                at += 1;
            }
        }
        None
    }
}
