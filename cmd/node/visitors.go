package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What one user, root excepted, can have the cluster hold for clients. The list of
// them and the record are everybody's; for calls it is as on the socket, and the
// connections of each client are counted by the door.
const (
	clientsOfUser     = 100
	tokensOfUser      = 100 // which the record still has: it forgets them a day after their end
	longestInvitation = 24 * time.Hour
	clientCalls       = 1024 // of all of a user's clients at one member, at once
)

// visitors are the users whose clients call here.
type visitors struct {
	maxCalls int
	maxBytes int64 // of requests that have not been answered

	mu    sync.Mutex
	calls map[string]int
	bytes map[string]int64
}

func newVisitors() *visitors {
	return &visitors{maxCalls: clientCalls, maxBytes: localBytes, calls: map[string]int{}, bytes: map[string]int64{}}
}

// enter counts a call until leave.
func (v *visitors) enter(u wire.User) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if u.UID != 0 && v.calls[u.Name] >= v.maxCalls {
		return fmt.Errorf("%w: %s has %d calls under way here: wait for their answers", wire.ErrDenied, u.Name, v.maxCalls)
	}
	v.calls[u.Name]++
	return nil
}

func (v *visitors) leave(u wire.User) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.calls[u.Name]--; v.calls[u.Name] == 0 {
		delete(v.calls, u.Name)
	}
}

// hold counts bytes of a user's requests; n below zero lets go of some.
func (v *visitors) hold(u wire.User, n int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	held := v.bytes[u.Name] + n
	if n > 0 && u.UID != 0 && held > v.maxBytes {
		return fmt.Errorf("%s has %d bytes of requests under way: wait for their answers", u.Name, v.bytes[u.Name])
	}
	if v.bytes[u.Name] = held; held == 0 {
		delete(v.bytes, u.Name)
	}
	return nil
}
