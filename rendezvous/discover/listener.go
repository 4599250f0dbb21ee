package discover

import (
	"net/netip"
	"time"
)

// packetRate is how many packets a second are read from one link: of a flood the kernel
// drops the rest.
const packetRate = 500

// listen reads a wire's packets until it is closed; take is called for one at a time, and
// must not keep the packet. The channel gives the error that ended it.
func listen(w wire, take func(packet []byte, from netip.AddrPort)) <-chan error {
	ended := make(chan error, 1)
	go func() { // ends with the wire; whoever closes that waits for ended
		buf := make([]byte, maxPacket+1)
		begin, read := time.Now(), 0
		for {
			n, from, err := w.receive(buf)
			if err != nil {
				ended <- err
				return
			}
			if n <= maxPacket {
				take(buf[:n], from)
			}
			if read++; read >= packetRate {
				time.Sleep(time.Second - time.Since(begin)) // none, where they came slower
				begin, read = time.Now(), 0
			}
		}
	}()
	return ended
}
