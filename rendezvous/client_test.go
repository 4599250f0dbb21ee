package rendezvous

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func inviteOf(id, user string) Entry {
	return Entry{Kind: KindToken, At: t0,
		Token: &Token{ID: id, Hash: []byte("h" + id), Role: RoleClient, Uses: 1, Expires: t0.Add(time.Minute), User: user}}
}

func loginOf(token string, at time.Time, c Client) Entry {
	return Entry{Kind: KindLogin, At: at, Login: &Login{TokenID: token, Client: c}}
}

// A login is the token's, whatever it claims, and once.
func TestLogin(t *testing.T) {
	l := founded(t)
	l.must(t, inviteOf("t1", "ada"), inviteOf("t2", "ada"), inviteOf("t3", ""),
		Entry{Kind: KindToken, At: t0, Token: &Token{ID: "n1", Role: "node", Uses: 1, Expires: t0.Add(time.Minute)}})
	book := Client{ID: "c1", User: "root", Host: "book", Key: "k1"}
	for _, s := range []struct {
		what  string
		entry Entry
		want  error
	}{
		{"with a node's token", loginOf("n1", t0, book), ErrTokenRole},
		{"with none", loginOf("t9", t0, book), ErrTokenUnknown},
		{"with one of no user", loginOf("t3", t0, book), ErrTokenUsed},
		{"too late", loginOf("t1", t0.Add(time.Hour), book), ErrTokenExpired},
		{"in time", loginOf("t1", t0, book), nil},
		{"again", loginOf("t1", t0, Client{ID: "c2"}), ErrTokenUsed},
		{"the same machine by another token", loginOf("t2", t0, book), ErrTokenUsed},
		{"a join with a client's token", Entry{Kind: KindJoin, At: t0, Join: &Join{TokenID: "t1", Node: node(2)}},
			ErrTokenUsed},
		{"removal", Entry{Kind: KindLogout, Logout: "c1"}, nil},
		{"another removal", Entry{Kind: KindLogout, Logout: "c1"}, ErrNoClient},
		{"by a token that its user had left", loginOf("t2", t0, Client{ID: "c3"}), ErrTokenUnknown},
	} {
		if got, _ := l.apply(s.entry).(error); !errors.Is(got, s.want) {
			t.Errorf("%s: %v, want %v", s.what, got, s.want)
		}
		if s.what == "in time" {
			if d := cmp.Diff([]Client{{ID: "c1", User: "ada", Host: "book", Key: "k1", At: t0}}, l.Clients()); d != "" {
				t.Errorf("clients (-want +got):\n%s", d)
			}
		}
	}
	if len(l.Clients()) != 0 || l.Removals() != 0 {
		t.Errorf("left: %+v; %d members count as removed", l.Clients(), l.Removals())
	}
}

// Snapshots have the clients and those that were taken out, and a reunion brings none of the latter back.
func TestClientsThroughSnapshotAndReunion(t *testing.T) {
	both := []Entry{inviteOf("t1", "ada"), inviteOf("t2", "bob"), inviteOf("t3", "eve"),
		loginOf("t1", t0, Client{ID: "c1", Host: "book", Key: "k1"}),
		loginOf("t2", t0, Client{ID: "c2", Host: "pad", Key: "k2"})}
	mine, other := split(t, both, []Entry{{Kind: KindLogout, Logout: "c1"}},
		[]Entry{loginOf("t3", t0, Client{ID: "c3", Host: "desk", Key: "k3"}), {Kind: KindLogout, Logout: "c2"}})
	reunite(t, mine, other)
	data, err := mine.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	again := NewRecord()
	if err := again.Restore(data); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Record{mine.Record, again} {
		if all := r.Clients(); len(all) != 1 || all[0].ID != "c3" || all[0].User != "eve" {
			t.Errorf("clients: %+v, want eve's alone", all)
		}
	}
}

func TestFindClient(t *testing.T) {
	all := []Client{{ID: "aaaa1111", User: "ada", Host: "book"}, {ID: "aaaa2222", User: "bob", Host: "book"},
		{ID: "bbbb3333", User: "bob", Host: "pad"}}
	for text, want := range map[string]string{
		"aaaa1111": "aaaa1111", "aaaa2": "aaaa2222", "pad": "bbbb3333", "bob@book": "aaaa2222", "book": "", "aaaa": "",
		"bbb": "", "": "", "eve@pad": "",
	} {
		got, err := FindClient(all, text)
		if got.ID != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrNoClient) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if text == "book" && !strings.Contains(err.Error(), "aaaa1111 (ada@book), aaaa2222 (bob@book)") {
			t.Errorf("%q: %v names nobody", text, err)
		}
	}
}
