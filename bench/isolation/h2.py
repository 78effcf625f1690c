"""A minimal HTTP/2 client that opens many requests on one connection and reads none of the answers."""
import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM_AND_HEADERS = 0x1 | 0x4


def _text(value):
    data = value.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    size, out = len(data) - 127, bytearray([127])
    while size >= 128:
        out.append(size % 128 | 128)
        size //= 128
    return bytes(out) + bytes([size]) + data


def _indexed(name, value):
    # Literal with incremental indexing: the second time one byte stands for all of it.
    return b"\x40" + _text(name) + _text(value)


class Connection:
    """A connection that announces the smallest windows a client may have by default, 64 KiB."""

    def __init__(self, port, context, token, window=65535):
        stream = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.tls = context.wrap_socket(stream, server_hostname="127.0.0.1")
        if self.tls.selected_alpn_protocol() != "h2":
            raise RuntimeError("the server does not offer h2")
        self.token, self.next, self.sent, self.names = token, 1, 0, []
        self.buffer, self.open, self.statuses, self.refused = b"", {}, {}, 0
        settings = struct.pack(">HI", 4, window)
        self._send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(SETTINGS, 0, 0, settings))

    @staticmethod
    def _frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def _send(self, data):
        self.sent += len(data)
        self.tls.sendall(data)

    def _field(self, name, value):
        """A field, by its number in the dynamic table once it was sent."""
        if (name, value) in self.names:
            # The newest entry is 62.
            return bytes([0x80 | 62 + len(self.names) - 1 - self.names.index((name, value))])
        self.names.append((name, value))
        return _indexed(name, value)

    def get(self, paths):
        """Requests all these paths, in one write."""
        out = bytearray()
        for path in paths:
            # 2, 7: GET and https of the static table.
            block = b"\x82\x87" + self._field(":authority", "127.0.0.1") + self._field(":path", path)
            block += self._field("authorization", f"Bearer {self.token}")
            out += self._frame(HEADERS, END_STREAM_AND_HEADERS, self.next, block)
            self.open[self.next] = None
            self.next += 2
        self._send(bytes(out))

    def poll(self, seconds=0.2):
        """Reads what the server has sent, without opening its window for more."""
        self.tls.settimeout(seconds)
        try:
            while True:
                data = self.tls.recv(1 << 16)
                if not data:
                    return False
                self.buffer += data
                self._take()
        except (TimeoutError, socket.timeout):
            return True
        except OSError:
            return False

    def _take(self):
        while len(self.buffer) >= 9:
            size = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + size:
                return
            kind, flags = self.buffer[3], self.buffer[4]
            stream = int.from_bytes(self.buffer[5:9], "big") & 0x7FFFFFFF
            self.buffer = self.buffer[9 + size:]
            if kind == SETTINGS and not flags & 1:
                self.tls.sendall(self._frame(SETTINGS, 1, 0, b""))
            elif kind == RST_STREAM:
                self.refused += self.open.pop(stream, False) is not False
            elif kind in (DATA, HEADERS) and flags & 1:
                self.open.pop(stream, None)

    def close(self):
        self.tls.close()
