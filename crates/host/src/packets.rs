//! Packets that the processes of a control group send, counted by the kernel with eBPF.
//!
//! A program of some forty instructions runs where a packet of a counted group leaves IP, loopback
//! included, and adds one to a number of the group that it is attached to, whichever group below sent
//! it. Packets of TCP without payload (acknowledgements, the begin and end of a connection) are left
//! out: how many there are depends on timing and not on the work done. The program runs on large messages
//! before they are segmented, so an answer of up to 64 KiB written at once is one packet.
//!
//! Needs the unified tree, Linux 5.7 and CAP_BPF with CAP_NET_ADMIN (or CAP_SYS_ADMIN). Each group is
//! attached by a link, which the kernel removes when its descriptor is closed: nothing stays behind
//! a process that ends.

use crate::cgroup::Cgroup;
use crate::error::{HostError, Result, is_gone};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// The BPF program and its map of packet counts, ready to be attached to cgroups. Clones share both.
#[derive(Debug, Clone)]
pub struct PacketProgram(Arc<LoadedProgram>);

#[derive(Debug)]
struct LoadedProgram {
    map: OwnedFd,
    program: OwnedFd,
}

/// The count of one group; counting stops on drop.
#[derive(Debug)]
pub struct PacketCounter {
    loaded: Arc<LoadedProgram>,
    _link: OwnedFd,
    key: Key,
}

impl PacketProgram {
    /// Loads the program into the kernel.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] when the kernel has no such programs or refuses them to this process;
    /// else the kernel's error.
    pub fn load() -> Result<Self> {
        let map = bpf(
            MAP_CREATE,
            &MapCreate {
                kind: MAP_TYPE_CGROUP_STORAGE,
                key_size: size_of_u32::<Key>(),
                value_size: size_of_u32::<u64>(),
                ..MapCreate::default()
            },
        );
        let map = map.map_err(|error| failure("create a bpf map", error))?;
        let instructions = program(map.as_raw_fd());
        let license = c"Apache-2.0";
        let program = bpf(
            PROG_LOAD,
            &ProgLoad {
                kind: PROG_TYPE_CGROUP_SKB,
                count: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
                instructions: instructions.as_ptr() as u64,
                license: license.as_ptr() as u64,
                name: *b"koord_packets\0\0\0",
                expected_attach_type: ATTACH_EGRESS,
                ..ProgLoad::default()
            },
        );
        let program = program.map_err(|error| failure("load a bpf program", error))?;
        Ok(Self(Arc::new(LoadedProgram { map, program })))
    }

    /// Starts to count the packets that `group` and the groups below it send; `None` when it is not in the
    /// unified tree. Other programs attached there keep running.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] when no unified tree is mounted or the kernel has no links; else what
    /// the kernel answered.
    pub fn attach(&self, group: &Cgroup) -> Result<Option<PacketCounter>> {
        let Some(dir) = group.unified_dir() else {
            return Err(HostError::Unsupported {
                resource: RESOURCE,
                version: "the mounted hierarchies (no unified tree)",
            });
        };
        let opened = File::open(&dir).and_then(|place| Ok((place.metadata()?.ino(), place)));
        let (id, place) = match opened {
            Ok(opened) => opened,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(HostError::io("open", &dir, error)),
        };
        let link = bpf(
            LINK_CREATE,
            &LinkCreate {
                program: self.0.program.as_raw_fd(),
                target: place.as_raw_fd(),
                attach_type: ATTACH_EGRESS,
                flags: 0,
            },
        );
        match link {
            Ok(link) => Ok(Some(PacketCounter {
                loaded: self.0.clone(),
                _link: link,
                key: Key {
                    group: id,
                    attach_type: ATTACH_EGRESS,
                    rest: 0,
                },
            })),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Err(HostError::Unsupported {
                    resource: RESOURCE,
                    version: "this kernel (no bpf links for groups)",
                })
            }
            Err(error) => {
                let call = format!("attach a bpf program to {}", dir.display());
                Err(HostError::call(call, error))
            }
        }
    }
}

impl PacketCounter {
    /// Returns the packets so far, in one system call; `None` when the group is gone.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self) -> Result<Option<u64>> {
        match read_map_value(&self.loaded.map, self.key) {
            Ok(packets) => Ok(Some(packets)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(HostError::call("read a bpf map", error)),
        }
    }
}

const RESOURCE: &str = "a count of packets by group (eBPF)";

fn failure(call: &str, error: io::Error) -> HostError {
    let version = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "what this process may use (CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN)"
        }
        Some(libc::ENOSYS | libc::EINVAL | libc::EBADF) => "this kernel",
        _ => return HostError::call(call, error),
    };
    HostError::Unsupported {
        resource: RESOURCE,
        version,
    }
}

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_CGROUP_STORAGE: u32 = 19;
const PROG_TYPE_CGROUP_SKB: u32 = 8;
const ATTACH_EGRESS: u32 = 1;

/// First fields of `union bpf_attr`, by command; the kernel takes the rest as zero.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: RawFd,
    target: RawFd,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct MapLookup {
    map: RawFd,
    rest: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `struct bpf_cgroup_storage_key`: the group of a number.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Key {
    group: u64,
    attach_type: u32,
    rest: u32,
}

fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}

/// The commands that answer with a descriptor. Whatever addresses `attributes` holds must be good
/// for reading until this returns.
#[allow(
    unsafe_code,
    reason = "a system call that neither rustix nor libc wraps"
)]
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attributes`. The commands used here
    // (MAP_CREATE, PROG_LOAD without a log, LINK_CREATE) write nothing to us, and the memory that
    // PROG_LOAD's addresses name (instructions and license) lives in the caller until the call is over.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us; no other code has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the value of `key` in the BPF map `map`, by the `BPF_MAP_LOOKUP_ELEM` command.
#[allow(
    unsafe_code,
    reason = "a system call that neither rustix nor libc wraps"
)]
fn read_map_value(map: &OwnedFd, key: Key) -> io::Result<u64> {
    let mut value = 0_u64;
    let attributes = MapLookup {
        map: map.as_raw_fd(),
        rest: 0,
        key: &raw const key as u64,
        value: &raw mut value as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads the attributes and the key and writes the map's value size, which is
    // that of a u64 (see `PacketProgram::load`), to `value`; all live until the call is over.
    let code = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            MAP_LOOKUP_ELEM,
            &raw const attributes,
            size_of::<MapLookup>(),
        )
    };
    if code < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

/// A jump target in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Ipv6,
    Protocol,
    Count,
    Out,
}

/// Assembles BPF instructions. Registers: 0 is a result, 1 to 5 are arguments and lost in calls, 6 to 9 are
/// preserved, 10 is the end of the stack.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn push(&mut self, code: u8, (to, from): (u8, u8), offset: i16, value: i32) {
        let registers = match cfg!(target_endian = "little") {
            true => from << 4 | to,
            false => to << 4 | from,
        };
        self.code.push(Instruction {
            code,
            registers,
            offset,
            value,
        });
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn jump(&mut self, code: u8, registers: (u8, u8), value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, registers, 0, value);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, (to, 0), 0, value);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, (to, from), 0, 0);
    }

    fn add(&mut self, to: u8, value: i32) {
        self.push(0x07, (to, 0), 0, value);
    }

    fn and(&mut self, to: u8, value: i32) {
        self.push(0x57, (to, 0), 0, value);
    }

    fn shift_left(&mut self, to: u8, bits: i32) {
        self.push(0x67, (to, 0), 0, bits);
    }

    fn shift_right(&mut self, to: u8, bits: i32) {
        self.push(0x77, (to, 0), 0, bits);
    }

    fn call(&mut self, helper: i32) {
        self.push(0x85, (0, 0), 0, helper);
    }

    /// Adds instructions that load the packet's byte at the offset in register 2 into register 8, and that
    /// jump to `Label::Count` if the packet is too short.
    fn load_byte(&mut self) {
        const SKB_LOAD_BYTES: i32 = 26;
        self.copy(1, 6);
        self.copy(3, 10);
        self.add(3, -8);
        self.set(4, 1);
        self.call(SKB_LOAD_BYTES);
        self.jump(0x55, (0, 0), 0, Label::Count);
        self.push(0x71, (8, 10), -8, 0);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let target = self.labels.iter().find(|(known, _)| known == label);
            if let (Some((_, target)), Some(jump)) = (target, self.code.get_mut(*at)) {
                jump.offset = (*target as i64 - *at as i64 - 1) as i16;
            }
        }
        self.code
    }
}

/// Returns the BPF program, which counts in `map` and lets every packet pass.
fn program(map: RawFd) -> Vec<Instruction> {
    const GET_LOCAL_STORAGE: i32 = 81;
    const TCP: i32 = 6;
    let mut asm = Assembler::default();
    asm.copy(6, 1);
    // Version and length of the IP header: register 7 becomes its bytes, register 2 the offset of the
    // protocol.
    asm.set(2, 0);
    asm.load_byte();
    asm.copy(7, 8);
    asm.shift_right(8, 4);
    asm.jump(0x15, (8, 0), 6, Label::Ipv6);
    asm.and(7, 0x0f);
    asm.shift_left(7, 2);
    asm.set(2, 9);
    asm.jump(0x05, (0, 0), 0, Label::Protocol);
    asm.label(Label::Ipv6);
    asm.set(7, 40);
    asm.set(2, 6);
    asm.label(Label::Protocol);
    asm.load_byte();
    asm.jump(0x55, (8, 0), TCP, Label::Count);
    // Length of the TCP header: register 7 becomes the bytes of both.
    asm.copy(2, 7);
    asm.add(2, 12);
    asm.load_byte();
    asm.shift_right(8, 4);
    asm.shift_left(8, 2);
    asm.push(0x0f, (7, 8), 0, 0);
    // The length of the packet is the first field of the program's context.
    asm.push(0x61, (8, 6), 0, 0);
    asm.jump(0x3d, (7, 8), 0, Label::Out);
    asm.label(Label::Count);
    // An address of 64 bits takes two instructions; 1 marks it as a map's.
    asm.push(0x18, (1, 1), 0, map);
    asm.push(0, (0, 0), 0, 0);
    asm.set(2, 0);
    asm.call(GET_LOCAL_STORAGE);
    asm.set(1, 1);
    // Atomic: the group's packets leave on many CPUs.
    asm.push(0xdb, (0, 1), 0, 0);
    asm.label(Label::Out);
    asm.set(0, 1);
    asm.push(0x95, (0, 0), 0, 0);
    asm.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Exit, Spawn, Spawner};
    use crate::real_group::RealGroup;
    use crate::testing::skip;
    use crate::{CgroupPath, Root, fake};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

    const PLACES: &str = "KOORD_TEST_SEND_TO";
    const DATAGRAMS: u64 = 37;
    const REQUESTS: u64 = 5;

    #[test]
    fn jumps_stay_inside_the_program() {
        let code = program(3);
        for (at, one) in code.iter().enumerate() {
            let target = at as i64 + 1 + i64::from(one.offset);
            let jumps = one.code & 0x07 == 0x05 && one.code != 0x85 && one.code != 0x95;
            assert!(
                !jumps || one.offset > 0 && target < code.len() as i64,
                "{at}: {one:?}"
            );
        }
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!(code.last().map(|instruction| instruction.code), Some(0x95));
    }

    /// Helper process of the test below, run in its group; does nothing by itself.
    #[test]
    fn sender() {
        let Ok(places) = std::env::var(PLACES) else {
            return;
        };
        for place in places.split_whitespace() {
            let (kind, address) = place.split_once('=').unwrap();
            let address: SocketAddr = address.parse().unwrap();
            if kind == "udp" {
                let socket = UdpSocket::bind((address.ip(), 0)).unwrap();
                for _ in 0..DATAGRAMS {
                    socket.send_to(b"x", address).unwrap();
                }
                continue;
            }
            let mut stream = TcpStream::connect(address).unwrap();
            for _ in 0..REQUESTS {
                stream.write_all(b"q").unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer, *b"q");
            }
        }
    }

    /// Answers byte by byte; these packets are not the group's.
    fn echo(listener: &TcpListener) {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut byte = [0];
            while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
        }
    }

    #[test]
    fn what_a_group_sends_is_counted() {
        if !crate::is_root() {
            skip("root", "bpf needs CAP_BPF and CAP_NET_ADMIN");
            return;
        }
        let Some(group) = RealGroup::new("packets", &[]).unwrap() else {
            return;
        };
        let Some(other) = RealGroup::new("packets-other", &[]).unwrap() else {
            return;
        };
        let loaded = PacketProgram::load().and_then(|program| {
            let counters = (program.attach(&group.0)?, program.attach(&other.0)?);
            Ok((program, counters))
        });
        let (program, counters) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                assert!(error.is_unsupported(), "{error}");
                skip("bpf", error);
                return;
            }
        };
        let (counter, others) = (counters.0.unwrap(), counters.1.unwrap());
        assert_eq!(counter.read().unwrap(), Some(0), "nothing runs there yet");

        let mut places = String::new();
        let mut want = 0;
        let mut sockets = Vec::new();
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let (Ok(udp), Ok(tcp)) = (UdpSocket::bind(ip), TcpListener::bind(ip)) else {
                continue;
            };
            let (to, at) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
            places += &format!("udp={to} tcp={at} ");
            want += DATAGRAMS + REQUESTS;
            sockets.push(udp);
            std::thread::spawn(move || echo(&tcp));
        }
        assert!(want > 0);
        let spawner = Spawner::start(group.0.root().clone()).unwrap();
        let send = || {
            let sender = spawner.spawn(Spawn {
                program: std::env::current_exe().unwrap().into(),
                args: vec!["--exact".into(), "packets::tests::sender".into()],
                env: vec![(PLACES.into(), places.clone().into())],
                cgroups: group.0.entrances(),
                ..Spawn::default()
            });
            let mut sender = sender.unwrap();
            let mut output = String::new();
            let mut stdout = File::from(sender.stdout.take().unwrap());
            stdout.read_to_string(&mut output).unwrap();
            let exit = loop {
                if let Some(exit) = sender.reap().unwrap() {
                    break exit;
                }
                std::thread::yield_now();
            };
            assert_eq!(exit, Exit::Code(0), "{output}");
        };
        send();
        assert_eq!(counter.read().unwrap(), Some(want));
        assert_eq!(others.read().unwrap(), Some(0), "another group's");

        // Without the link nothing is counted.
        drop(counter);
        send();
        let second_counter = program.attach(&group.0).unwrap().unwrap();
        assert!(second_counter.read().unwrap().unwrap() <= want);
    }

    #[test]
    fn attach_without_support_returns_reason() {
        let program = match PacketProgram::load() {
            Ok(program) => program,
            Err(error) => {
                assert!(error.is_unsupported(), "{error}");
                let text = error.to_string();
                assert!(text.contains("eBPF"), "{text}");
                skip("bpf", text);
                return;
            }
        };
        let tree = fake::Tree::v1("0").unwrap();
        let group = tree.group("kubepods").unwrap();
        let error = program.attach(&tree.root().cgroup(&group)).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        // A directory that is no group.
        let tree = fake::Tree::hybrid("0").unwrap();
        let group = tree.group("kubepods").unwrap();
        assert!(program.attach(&tree.root().cgroup(&group)).is_err());
        if let Ok(root) = Root::system()
            && root.unified_mount().is_some()
        {
            let missing_group = root.cgroup(&CgroupPath::new("koord-gone").unwrap());
            assert!(program.attach(&missing_group).unwrap().is_none());
        }
    }
}
