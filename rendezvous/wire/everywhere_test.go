package wire

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// Each node gives its own part; who is away is not asked, and who fails has a word in its place.
func TestEverywhere(t *testing.T) {
	part := func(free uint64) func(context.Context, Caller, Empty) (NodeCounters, error) {
		return func(context.Context, Caller, Empty) (NodeCounters, error) {
			if free == 0 {
				return NodeCounters{MemAvailable: 1}, errors.New("no such file")
			}
			return NodeCounters{MemAvailable: free}, nil
		}
	}
	others := map[launcher.NodeID]*Client{
		"2": Alone(Caller{Node: "1"}, Counters.Serve(part(2))...),
		"3": Alone(Caller{Node: "1"}, Counters.Serve(part(0))...),
	}
	var problem error
	all := Everyone{
		Self: "1",
		Status: func(context.Context, Caller, StatusRequest) (Status, error) {
			return Status{Nodes: []NodeStatus{{ID: "1", Host: "spark1"}, {ID: "2", Host: "spark2"},
				{ID: "3", Host: "spark3", State: "unknown"}, {ID: "4", Host: "spark4", State: "away"}}}, problem
		},
		Client: func(id launcher.NodeID) *Client { return others[id] },
	}
	ada := NewServer(ServerConfig{Everyone: all}, Counters.Serve(part(1))...).As(Caller{User: &User{Name: "ada"}})
	got, err := Counters.Call(t.Context(), ada, Empty{})
	want := CountersResponse{Nodes: []NodeCounters{{ID: "1", Host: "spark1", MemAvailable: 1},
		{ID: "2", Host: "spark2", MemAvailable: 2}, {ID: "3", Host: "spark3", Error: "no such file"},
		{ID: "4", Host: "spark4", Error: "spark4 is away"}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v -want +got:\n%s", err, diff)
	}
	problem = ErrNoLeader
	if _, err := Counters.Call(t.Context(), ada, Empty{}); !errors.Is(err, ErrNoLeader) {
		t.Errorf("nobody knows the members: %v", err)
	}
	if _, err := Counters.Call(t.Context(), others["2"], Empty{}); !errors.Is(err, ErrDenied) {
		t.Errorf("a member asks for all: %v", err)
	}
}
