use std::os::raw::{c_int, c_uint, c_void};

extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int;
    fn cuCtxSetCurrent(context: *mut c_void) -> c_int;
    fn cuMemAlloc_v2(memory: *mut u64, bytes: usize) -> c_int;
    fn cuMemFree_v2(memory: u64) -> c_int;
}

fn main() {
    let mut context = std::ptr::null_mut();
    let mut memory = 0u64;
    let mut answered = 0;
    unsafe {
        assert!(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&mut context, 0) == 0);
        assert!(cuCtxSetCurrent(context) == 0);
        for _ in 0..40 {
            answered += (cuMemAlloc_v2(&mut memory, 4000) == 0 && cuMemFree_v2(memory) == 0) as i32;
        }
    }
    println!("answered {answered}");
    std::process::exit(7);
}
