"""Says by mDNS, five times a second, that members of clusters are at this host's door.

stranger.py ADDRESS CLUSTER=CA=HOST... : each CLUSTER=CA=HOST is one announcement.
"""
import socket, struct, sys, time

address, lies = sys.argv[1], [a.split("=") for a in sys.argv[2:]]
SERVICE, FLUSH = "_sparkrun._tcp.local", 0x8001


def name(text):
    return b"".join(bytes([len(l)]) + l.encode() for l in text.split(".")) + b"\0"


def record(owner, kind, cls, data):
    return name(owner) + struct.pack(">HHIH", kind, cls, 120, len(data)) + data


def announcement(cluster, ca, host):
    label = host + "-" + ca[:8].lower().strip("-_")
    inst, target = label + "." + SERVICE, label + ".local"
    text = b"".join(bytes([len(t)]) + t.encode() for t in ["v=1", "cluster=" + cluster, "ca=" + ca, "host=" + host])
    return struct.pack(">6H", 0, 0x8400, 0, 4, 0, 0) + b"".join([
        record(SERVICE, 12, 1, name(inst)),
        record(inst, 33, FLUSH, struct.pack(">3H", 0, 0, 7940) + name(target)),
        record(inst, 16, FLUSH, text),
        record(target, 1, FLUSH, socket.inet_aton(address)),
    ])


s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("224.0.0.251", 5353))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
while True:
    for lie in lies:
        s.sendto(announcement(*lie), ("224.0.0.251", 5353))
    time.sleep(0.2)
