//! Functions from before addresses had 64 bits (CUDA 3.2), which take memory. No program of today can use what they give;
//! in a lease they are refused.

use crate::code::{Code, NOT_SUPPORTED};
use crate::entries::real;
use crate::job;

macro_rules! refused {
    ($($symbol:ident($($argument:ident),*);)*) => {$(
        #[doc = concat!("`", stringify!($symbol), "`")]
        pub(crate) unsafe fn $symbol($($argument: usize),*) -> Code {
            if job::is_named() {
                return NOT_SUPPORTED;
            }
            // SAFETY: the caller's arguments, passed on.
            unsafe { real::$symbol($($argument),*) }
        }
    )*};
}

refused! {
    cuMemAlloc(out, bytes);
    cuMemAllocPitch(out, pitch, width, height, element);
    cuArrayCreate(out, shape);
    cuArray3DCreate(out, shape);
}
