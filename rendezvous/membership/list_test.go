package membership

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// founded is a machine that has founded a cluster, and its list.
func founded(t *testing.T) (Folder, *List) {
	t.Helper()
	f := Folder(t.TempDir())
	_, err := Newcomer{
		Folder: f, Addr: netip.MustParseAddrPort("192.0.2.1:7940"), Now: time.Now, Enrolment: Enrolment{Host: "spark1"},
	}.Found()
	if err != nil {
		t.Fatal(err)
	}
	return f, opened(t, f)
}

func opened(t *testing.T, f Folder) *List {
	t.Helper()
	e, err := f.Enrolment()
	if err != nil {
		t.Fatal(err)
	}
	l, err := OpenList(ListConfig{
		Self: e.Node, Trust: f.Trust(), Record: rendezvous.NewRecord(), Now: time.Now, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func told(index uint64, members ...wire.Member) wire.MemberList {
	return wire.MemberList{Epoch: launcher.Epoch{N: 1}, Index: index, Members: members}
}

// Of two lists the one of the later place counts, here and after a restart; an empty one never does.
func TestNewerListCounts(t *testing.T) {
	f, l := founded(t)
	a, b := wire.Member{ID: "a", Host: "spark1"}, wire.Member{ID: "b", Host: "spark2"}
	for _, step := range []struct {
		told  wire.MemberList
		hasB  bool
		place uint64
	}{
		{told(5, a, b), true, 5}, {told(4, a), true, 5}, {told(9), true, 5}, {told(7, a, b), true, 7},
		{told(8, a), false, 8},
		{wire.MemberList{Epoch: launcher.Epoch{N: 2}, Index: 1, Members: []wire.Member{a, b}}, true, 1},
	} {
		if err := l.take(step.told); err != nil {
			t.Fatal(err)
		}
		if _, _, has := l.Listed("b"); has != step.hasB || l.now().Index != step.place {
			t.Errorf("after %+v: b is listed: %v, place %d", step.told, has, l.now().Index)
		}
	}
	if _, _, has := opened(t, f).Listed("b"); !has {
		t.Error("the list is lost with the process")
	}
}

// A member is let in by name and key; who is not listed is refused, and asked about; a client needs its entry.
func TestWhoIsLetIn(t *testing.T) {
	_, l := founded(t)
	peer := func(id string, role trust.Role) trust.Peer { return trust.Peer{NodeID: id, Role: role} }
	var own, other trust.Pin
	other[0] = 1
	if err := l.admits(peer("b", trust.RoleNode), own); err != nil {
		t.Errorf("before anybody has told who is a member: %v", err)
	}
	if err := l.admits(peer("c", trust.RoleClient), own); !errors.Is(err, rendezvous.ErrNoClient) {
		t.Errorf("a client, on its certificate's word: %v", err)
	}
	<-l.ask
	list := told(5, wire.Member{ID: "b", Host: "spark2", Key: own.String()})
	list.Clients = []rendezvous.Client{{ID: "c", User: "ada", Host: "book", Key: own.String()}}
	if err := l.take(list); err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct {
		peer trust.Peer
		key  trust.Pin
		in   bool
	}{
		{peer("b", trust.RoleNode), own, true}, {peer("b", trust.RoleNode), other, false},
		{peer("b", trust.RoleWitness), own, false}, {peer("b", trust.RoleClient), own, false},
		{peer("c", trust.RoleClient), own, true}, {peer("c", trust.RoleClient), other, false},
	} {
		if err := l.admits(who.peer, who.key); (err == nil) != who.in {
			t.Errorf("%+v: %v", who, err)
		}
	}
	if err := l.admits(peer("d", trust.RoleNode), own); !errors.Is(err, rendezvous.ErrNoNode) {
		t.Errorf("who is not listed: %v", err)
	}
	<-l.ask
	for id, gone := range map[string]bool{"b": false, "c": false, "d": true, string(l.cfg.Self): false} {
		if l.isGone(id) != gone {
			t.Errorf("%s is gone: %v", id, !gone)
		}
	}
	l.part("d")
	if l.isGone("d") {
		t.Error("who leaves is cut off before it has its answer")
	}
}

// A machine is enrolled once, and one agent at a time has its folder open.
func TestFolderIsOneMembers(t *testing.T) {
	f, _ := founded(t)
	if _, err := f.Claim(); !errors.Is(err, ErrEnrolled) {
		t.Errorf("enrolled twice: %v", err)
	}
	held, err := f.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lock(); !errors.Is(err, ErrRunning) {
		t.Errorf("a second agent: %v", err)
	}
	dying := held
	time.AfterFunc(lockWait/10, func() { dying.Close() })
	if held, err = f.Lock(); err != nil {
		t.Fatalf("the next agent, while the one before is being killed: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.AwaitExit(context.Background()) }()
	held.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := f.Remove(t.TempDir()); err != nil {
		t.Error(err)
	}
	if in, err := f.Enrolled(); in || err != nil {
		t.Errorf("after its removal it is enrolled: %v, %v", in, err)
	}
	if held, err = f.Claim(); err != nil {
		t.Errorf("it is not free: %v", err)
	}
	held.Close()
}

// Another member's keys count where they are newer, a leader's always but where this node knows a newer one; a key that
// goes out of use is kept for what was sealed with it.
func TestKeysAreTaken(t *testing.T) {
	f, _ := founded(t)
	k := NewKeyring(KeyringConfig{Trust: f.Trust(), Record: rendezvous.NewRecord(), Logger: slog.New(slog.DiscardHandler)})
	first, _, err := k.now()
	if err != nil {
		t.Fatal(err)
	}
	second := trust.NewGossipKey(1)
	both, only := trust.Keyring{first[0], second}, trust.Keyring{second}
	for _, step := range []struct {
		name    string
		keys    trust.Keyring
		leaders bool
		want    trust.Keyring
	}{
		{"a member's, a step ahead", both, false, both},
		{"a member's, of the same keys in use otherwise", only, false, both},
		{"the leader's", only, true, only},
		{"the leader's, behind", first, true, only},
	} {
		if got, err := k.take(step.keys, step.leaders); err != nil || !got.Equal(step.want) {
			t.Errorf("%s: %d keys, %v", step.name, len(got), err)
		}
	}
	if _, err := k.take(nil, true); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("no keys: %v", err)
	}
	ring, retired, err := k.now()
	if err != nil || !ring.Equal(only) || !retired.Equal(trust.Retired(first)) {
		t.Errorf("on disk: %d in use, %d retired, %v", len(ring), len(retired), err)
	}
}
