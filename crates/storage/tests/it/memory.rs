//! The store in memory.

use slackline_storage::{LogWriter, Memory, Store};

use crate::common::*;

#[test]
fn crash_loses_the_unsynced_tail_and_a_copy_goes_its_own_way() {
    let mut memory = Memory::new();
    assert!(memory.is_new());
    for number in 1..=9 {
        memory.append_unsynced(number, numbered(number, 4));
    }
    assert_eq!((memory.last(), memory.absorbed(), memory.issued()), (0, 0, 9));
    assert!(all(memory.reader()).is_empty());
    memory.sync(6);
    assert_eq!((memory.last(), memory.absorbed(), memory.issued()), (6, 6, 9));
    let copy = memory.clone();
    memory.crash();
    assert_eq!((memory.last(), memory.issued()), (6, 6));
    assert_eq!(all(memory.reader()), expected(6, 4));
    memory.append_unsynced(7, numbered(70, 4));
    memory.sync(u64::MAX);
    assert_eq!(memory.reader().read(b"k0002").unwrap().unwrap(), b"value of batch 00000070");
    let mut copy = copy;
    assert_eq!((copy.last(), copy.issued(), all(copy.reader())), (6, 9, expected(6, 4)));
    copy.sync(9);
    assert_eq!(all(copy.reader()), expected(9, 4));
    assert!(!memory.is_new());
}

#[test]
fn writer_appends_durably_and_once() {
    let mut memory = Memory::new();
    let mut writer: Box<dyn LogWriter> = memory.writer().unwrap();
    assert!(memory.writer().is_none());
    fill(&mut *writer, 1..=500, 7, 13);
    assert_eq!((memory.last(), memory.absorbed()), (500, 500));
    assert_eq!(all(memory.reader()), expected(500, 13));
    memory.set_room(5);
    assert_eq!(memory.room(), 5);
}

#[test]
#[should_panic(expected = "in order")]
fn gap_in_the_numbers_is_an_assertion() {
    Memory::new().append_unsynced(2, numbered(2, 4));
}
