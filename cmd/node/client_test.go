package node

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// invite makes a client's token on a host, where the tests' user is root.
func (h *host) invite(user string) string {
	h.t.Helper()
	return h.token(wire.TokenRequest{Uses: 1, TTL: time.Minute, Role: "client", User: user})
}

// remoteClient is a machine outside the cluster that has logged in.
type remoteClient struct {
	*remote.Cluster
	t   testing.TB
	dir string
}

// login makes a remote client with a token.
func (h *host) login(token string) remoteClient {
	h.t.Helper()
	dir := h.t.TempDir() + "/lab"
	if _, err := remote.Login(h.t.Context(), dir, h.addr, token, "book"); err != nil {
		h.t.Fatal(err)
	}
	r, err := remote.Open(dir, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(r.Close)
	return remoteClient{r, h.t, dir}
}

func (l remoteClient) identity() *trust.Identity {
	l.t.Helper()
	id, err := trust.LoadClient(l.dir)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

// A client's call is its user's, whichever member it dials, and no line of it is missing.
func TestClientIsItsUser(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	book := c.hosts[1].login(c.hosts[0].invite("nobody"))
	spec := command(2, 1, "id -un")
	var out *rendezvous.Outcome
	if err := wire.Launch.Call(t.Context(), book.Client, wire.LaunchRequest{Spec: spec}, func(p rendezvous.Progress) error {
		out = p.Outcome
		return nil
	}); err != nil || out == nil || out.End != rendezvous.Completed {
		t.Fatalf("launch: %v, %+v", err, out)
	}
	if said := c.hosts[0].output(spec.ID); said[0] != "nobody\n" || said[1] != "nobody\n" {
		t.Errorf("the ranks ran as %v", said)
	}
	other := command(1, 1, "sleep 600")
	other.ID = launcher.NewJobID()
	asRoot := make(chan *rendezvous.Outcome, 1)
	go func() { asRoot <- c.hosts[0].run(other) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if jobs, err := wire.Jobs.Call(t.Context(), book.Client, wire.JobsRequest{}); err == nil && slices.ContainsFunc(jobs.Jobs, func(j rendezvous.JobStatus) bool { return j.Spec.ID == other.ID }) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("root's job does not come")
		}
	}
	asAnother := command(1, 1, "true")
	asAnother.User = "root"
	for what, err := range map[string]error{
		"stop root's job": func() error {
			_, err := wire.Stop.Call(t.Context(), book.Client, wire.StopRequest{Job: string(other.ID)})
			return err
		}(),
		"signal root's job":  wire.Signal.Call(t.Context(), book.Client, wire.SignalRequest{Job: string(other.ID), Signal: 9}),
		"exec in root's job": wire.Exec.Call(t.Context(), book.Client, wire.ExecRequest{Job: string(other.ID), Session: "g", Argv: []string{"true"}}, func(wire.ExecChunk) error { return nil }),
		"launch as root":     wire.Launch.Call(t.Context(), book.Client, wire.LaunchRequest{Spec: asAnother}, func(rendezvous.Progress) error { return nil }),
		"make a token": func() error {
			_, err := wire.Token.Call(t.Context(), book.Client, wire.TokenRequest{Uses: 1, TTL: time.Minute})
			return err
		}(),
		"make its own token": func() error {
			_, err := wire.Token.Call(t.Context(), book.Client, wire.TokenRequest{Uses: 1, TTL: time.Minute, Role: "client"})
			return err
		}(),
		"have a node leave": wire.Leave.Call(t.Context(), book.Client, wire.LeaveRequest{}),
		"mark a machine dead": func() error {
			_, err := wire.MarkDead.Call(t.Context(), book.Client, wire.MarkDeadRequest{Host: "spark2"})
			return err
		}(),
		"remove a node": func() error {
			_, err := wire.RemoveNode.Call(t.Context(), book.Client, wire.RemoveNodeRequest{Host: "spark2"})
			return err
		}(),
	} {
		if !errors.Is(err, wire.ErrDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}
	cl := c.hosts[0].client()
	defer cl.Close()
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(other.ID), Grace: new(time.Duration)}); err != nil {
		t.Error(err)
	}
	<-asRoot

	// On the member that was dialled: each call, each refusal, with name and address.
	dialled := c.hosts[slices.IndexFunc(c.hosts, func(h *host) bool { return h.now().self.ID == book.State().Last })]
	for what, want := range map[string]audit.Outcome{"launch": audit.Refused, "stop": audit.Refused, "exec": audit.Refused, "signal": audit.Refused, "node remove": audit.Refused, "client call": audit.OK} {
		lines := dialled.audits(what)
		i := slices.IndexFunc(lines, func(l audit.Line) bool { return l.Client == book.identity().NodeID && l.Outcome == want })
		if i < 0 || lines[i].Who != "nobody" || !strings.HasPrefix(lines[i].From, "book at 127.") || lines[i].UID != nil {
			t.Errorf("audit log of %s: %s: %+v", dialled.cfg.Host, what, lines)
		}
	}
	refused := dialled.audits("client call")
	for _, call := range []string{"leave", "token"} {
		if !slices.ContainsFunc(refused, func(l audit.Line) bool { return l.On == call && l.Outcome == audit.Refused }) {
			t.Errorf("no line of the refused %s: %+v", call, refused)
		}
	}
}

// What is not for users is closed to a client's certificate: members' calls, raft, and headers that only members may send.
func TestClientReachesUsersCallsAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	book := c.hosts[0].login(c.hosts[0].invite("nobody"))
	if _, err := wire.AskTrusted.Call(t.Context(), book.Client, wire.Empty{}); err == nil {
		t.Error("a client was told the gossip keys")
	}
	if err := wire.KeepCA.Call(t.Context(), book.Client, wire.CAKey{}); err == nil {
		t.Error("a client gave a CA key")
	}
	if _, err := wire.Join.Call(t.Context(), book.Client, wire.JoinRequest{}); err == nil || errors.Is(err, rendezvous.ErrTokenUnknown) {
		t.Errorf("a client's join: %v", err)
	}
	refused := c.hosts[0].audits("client call")
	if n := len(slices.DeleteFunc(refused, func(l audit.Line) bool {
		return l.Outcome != audit.Refused || !strings.HasPrefix(l.On, "/members/") && !strings.HasPrefix(l.On, "/newcomers/")
	})); n != 3 {
		t.Errorf("%d of 3 refusals are in the audit log", n)
	}
	// Raft's protocol is refused in the handshake.
	h := c.hosts[0]
	conn, err := h.knock(h.gate(book.identity()).Client("", h.now().failover.Proto()))
	if err == nil {
		conn.Close()
		t.Error("a client got a raft connection")
	}
	// A header that says "on behalf of root".
	forger := book.OnBehalfOf(wire.Caller{User: &wire.User{Name: "root"}})
	if _, err := wire.MarkDead.Call(t.Context(), forger, wire.MarkDeadRequest{Host: "spark1"}); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("on behalf of root: %v", err)
	}
}

// Login tokens that are no good, each in its own words.
func TestLoginRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	leader := c.hosts[0]
	used := leader.invite("nobody")
	c.hosts[1].login(used)
	short := leader.token(wire.TokenRequest{Uses: 1, TTL: time.Millisecond, Role: "client", User: "nobody"})
	time.Sleep(2 * time.Millisecond) // its whole life
	for _, tc := range []struct {
		name, token string
		want        error
	}{
		{"used", used, rendezvous.ErrTokenUsed},
		{"expired", short, rendezvous.ErrTokenExpired},
		{"for a node", leader.token(wire.TokenRequest{Uses: 1, TTL: time.Minute}), rendezvous.ErrTokenRole},
		{"another cluster's", newCluster(t, 1).hosts[0].invite("nobody"), trust.ErrForeign},
	} {
		dir := t.TempDir() + "/lab"
		if _, err := remote.Login(t.Context(), dir, leader.addr, tc.token, "book"); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: a refused login leaves %v", tc.name, err)
		}
	}
	// A folder that cannot be written costs no token.
	token, file := leader.invite("nobody"), t.TempDir()+"/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Login(t.Context(), file+"/lab", leader.addr, token, "book"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("in a folder that cannot be: %v", err)
	}
	leader.login(token)

	cl := leader.client()
	defer cl.Close()
	for what, r := range map[string]wire.TokenRequest{
		"nobody's":            {Uses: 1, TTL: time.Minute, Role: "client"},
		"for two machines":    {Uses: 2, TTL: time.Minute, Role: "client", User: "nobody"},
		"of an unknown user":  {Uses: 1, TTL: time.Minute, Role: "client", User: "no-such-user"},
		"a node's for a user": {Uses: 1, TTL: time.Minute, User: "nobody"},
	} {
		if _, err := wire.Token.Call(t.Context(), cl, r); !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("token %s: %v", what, err)
		}
	}
}

// Whoever is taken off the list is out, on a connection that is open, and at every member.
func TestRemovedClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	book := c.hosts[1].login(c.hosts[0].invite("nobody"))
	followed := make(chan error, 1)
	began := make(chan struct{}, 1)
	go func() {
		followed <- wire.Follow.Call(t.Context(), book.Client, wire.Empty{}, func(wire.Status) error {
			select {
			case began <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	<-began
	cl := c.hosts[0].client()
	defer cl.Close()
	waiting := c.hosts[0].invite("nobody")
	res, err := wire.RemoveClients.Call(t.Context(), cl, wire.RemoveClientsRequest{Client: "nobody@book"})
	if err != nil || len(res.Removed) != 1 {
		t.Fatalf("remove: %+v, %v", res, err)
	}
	select {
	case err := <-followed:
		if err == nil {
			t.Error("its open stream ended without an error")
		}
	case <-time.After(time.Minute):
		t.Fatal("its open connection lives on")
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // the other member hears of it, too
		_, err := wire.Jobs.Call(t.Context(), book.Client, wire.JobsRequest{})
		if errors.Is(err, remote.ErrLoggedOut) {
			break
		}
		if err == nil && time.Now().After(deadline) {
			t.Fatal("its calls are answered")
		}
	}
	if _, err := remote.Login(t.Context(), t.TempDir()+"/lab", c.hosts[0].addr, waiting, "book"); !errors.Is(err, rendezvous.ErrTokenUnknown) {
		t.Errorf("a token that its user had made before: %v", err)
	}
	list, err := wire.Clients.Call(t.Context(), cl, wire.Empty{})
	if err != nil || len(list.Clients) != 0 {
		t.Errorf("clients: %+v, %v", list, err)
	}
}

// A certificate is renewed as it is used, after its end too, as long as its client is on the list.
func TestClientsCertificate(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	dir := c.hosts[0].login(c.hosts[0].invite("nobody")).dir
	ends := func() time.Time {
		id, err := trust.LoadClient(dir)
		if err != nil {
			t.Fatal(err)
		}
		return id.Cert.NotAfter
	}
	first := ends()
	for i, later := range []time.Duration{21 * 24 * time.Hour, 60 * 24 * time.Hour} {
		now := func() time.Time { return time.Now().Add(later) }
		c.hosts[0].halt()
		c.hosts[0].cfg.Now = now
		c.hosts[0].start()
		c.hosts[0].wait(1)
		r, err := remote.Open(dir, now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.Jobs.Call(t.Context(), r.Client, wire.JobsRequest{}); err != nil {
			t.Fatalf("after %s: %v", later, err)
		}
		r.Close()
		if !ends().After(first) {
			t.Errorf("step %d: the certificate ends %s, as before", i, ends())
		}
		first = ends()
	}
	if fi, err := os.Stat(dir + "/client.pem"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("its key's file: %v, %v", fi.Mode(), err)
	}
}

// A member that is gone costs a client nothing but a moment.
func TestClientFindsAnotherMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.hosts[0].waitVoters(3)
	book := c.hosts[0].login(c.hosts[0].invite("nobody"))
	for _, h := range c.hosts {
		if h.now().self.ID == book.State().Last {
			h.crash()
			break
		}
	}
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var st wire.Status
		if st, err = wire.ShowStatus.Call(t.Context(), book.Client, wire.StatusRequest{}); err == nil && st.Leader != "" {
			return
		}
	}
	t.Fatal(fmt.Errorf("no other member answers: %w", err))
}
