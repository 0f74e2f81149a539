//! Words that streams wait for and write.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::operation::{Task, Test, Touch, WordWait, Work};
use crate::rows::Rows;
use crate::session::{Session, in_context};

fn check_word(session: &mut Session<'_>, address: u64, write: bool) -> Answer<Touch> {
    if session.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 as i32) == 0 {
        return Err(NOT_SUPPORTED);
    }
    if address == 0 || !address.is_multiple_of(4) {
        return Err(session.refuse(INVALID_VALUE, &format!("{address:#x} is not the address of a word")));
    }
    let (call, context) = (session.call, session.context);
    session.check_device(call, context, address, 4, write)?;
    Ok(Touch { rows: Rows::span(address, 4), write, atomic: true, early: false })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: c_uint) -> c_int {
    in_context("cuStreamWaitValue32_v2", |session| {
        let timeline = session.stream(stream)?;
        let touch = check_word(session, address, false)?;
        let nor = session.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR as i32) != 0;
        // CU_STREAM_WAIT_VALUE_FLUSH, 1 << 30, is for devices that can flush remote writes, which this one cannot.
        let test = match flags {
            0 => Test::AtLeast,
            1 => Test::Equal,
            2 => Test::And,
            3 if nor => Test::Nor,
            3 | 0x4000_0000.. => return Err(NOT_SUPPORTED),
            _ => return Err(session.refuse(INVALID_VALUE, &format!("flags {flags:#x}"))),
        };
        let wait = Work::WaitValue(WordWait { address, value, test });
        session.submit(timeline, Task::new("cuStreamWaitValue32_v2", wait, vec![touch])).map(|_| ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: c_uint) -> c_int {
    in_context("cuStreamWriteValue32_v2", |session| {
        let timeline = session.stream(stream)?;
        let touch = check_word(session, address, true)?;
        // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER would take away order that the race check takes for granted.
        if flags != 0 {
            return Err(session.refuse(INVALID_VALUE, &format!("flags {flags:#x}")));
        }
        let write = Work::WriteValue(address, value);
        session.submit(timeline, Task::new("cuStreamWriteValue32_v2", write, vec![touch])).map(|_| ())
    })
}
