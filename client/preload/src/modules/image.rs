//! How many bytes of variables an image has: PTX text, or ELF.

use std::ffi::CStr;
use std::slice;

use gpulease_client::Bytes;

const ELF: [u8; 4] = *b"\x7fELF";

/// The sum of an image's variables in global memory; zero where it can't be told.
///
/// # Safety
/// The image is one as `cuModuleLoadData` takes it, or null: an ELF file, or text that ends with a zero, or something that
/// begins with a number of 4 bytes.
pub(super) unsafe fn variables(image: *const u8) -> Bytes {
    if image.is_null() {
        return Bytes::ZERO;
    }
    // SAFETY: each kind of image has 4 bytes, an empty text but one, which is looked at first.
    let first =
        unsafe { if *image == 0 { return Bytes::ZERO } else { image.cast::<[u8; 4]>().read_unaligned() } };
    if first == ELF {
        // SAFETY: it is an ELF file.
        return unsafe { of_elf(image) };
    }
    if first.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        // SAFETY: it is text.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        return of_text(&text.to_string_lossy());
    }
    Bytes::ZERO
}

/// The sections of variables, `.nv.global` and `.nv.global.init`.
///
/// # Safety
/// It is an ELF file of 64 bits, whole.
unsafe fn of_elf(image: *const u8) -> Bytes {
    // SAFETY: the file begins with its header.
    let header = unsafe { image.cast::<libc::Elf64_Ehdr>().read_unaligned() };
    let (start, count, names) =
        (header.e_shoff as usize, usize::from(header.e_shnum), usize::from(header.e_shstrndx));
    if start == 0 || names >= count || usize::from(header.e_shentsize) != size_of::<libc::Elf64_Shdr>() {
        return Bytes::ZERO;
    }
    // SAFETY: so many headers of sections are at that place.
    let section =
        |nth: usize| unsafe { image.add(start).cast::<libc::Elf64_Shdr>().add(nth).read_unaligned() };
    let table = section(names);
    // SAFETY: the names of sections are there.
    let table = unsafe { slice::from_raw_parts(image.add(table.sh_offset as usize), table.sh_size as usize) };
    let of_variables = |name: u32| {
        let name = table.get(name as usize..).and_then(|rest| CStr::from_bytes_until_nul(rest).ok());
        name.is_some_and(|name| name.to_bytes().starts_with(b".nv.global"))
    };
    let sections = (0..count).map(section).filter(|section| of_variables(section.sh_name));
    sections.fold(Bytes::ZERO, |sum, section| sum.saturating_add(Bytes::new(section.sh_size)))
}

/// Declarations as `.visible .global .align 4 .b8 name[1048576];`.
fn of_text(text: &str) -> Bytes {
    let statements = text.split([';', '{', '}', '\n']);
    let declared = statements.filter_map(|statement| {
        let (_, rest) = statement.split_once(".global")?;
        // `ld.global.f32` is no declaration.
        let before = statement.split(".global").next()?;
        (before.is_empty() || before.ends_with(char::is_whitespace))
            .then(|| size_of_declaration(rest))
            .flatten()
    });
    declared.fold(Bytes::ZERO, |sum, bytes| sum.saturating_add(Bytes::new(bytes)))
}

/// The size of the element times each number in brackets. An initial value is not looked at.
fn size_of_declaration(rest: &str) -> Option<u64> {
    let declared = rest.split('=').next()?;
    let element = declared.split_whitespace().find_map(|word| match word {
        ".b8" | ".u8" | ".s8" | ".pred" => Some(1),
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Some(2),
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => Some(4),
        ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
        ".b128" => Some(16),
        _ => None,
    })?;
    let sides =
        declared.split('[').skip(1).filter_map(|side| side.split(']').next()?.trim().parse::<u64>().ok());
    Some(sides.fold(element, u64::saturating_mul))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_count_and_instructions_do_not() {
        let text = ".version 7.0\n.target sm_70\n.global .align 256 .b8 big[1048576];\n\
            .visible .global .f32 two[2][8] = {0.0};\n.entry nothing()\n{\n ld.global.f32 %f1, [%rd1+4];\n ret;\n}\n";
        assert_eq!(of_text(text), Bytes::new(1_048_576 + 64));
        assert_eq!(of_text(""), Bytes::ZERO);
        // SAFETY: text that ends with a zero, nothing, and an image of a kind that is not read.
        unsafe {
            assert_eq!(variables(c".global .u64 one;".as_ptr().cast()), Bytes::new(8));
            assert_eq!(variables(std::ptr::null()), Bytes::ZERO);
            assert_eq!(variables([0x50, 0xed, 0x55, 0xba, 0].as_ptr()), Bytes::ZERO);
        }
    }
}
