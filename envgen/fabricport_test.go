package envgen

import (
	"strings"
	"testing"
)

func TestUnknownFabricPort(t *testing.T) {
	inv := spark("spark1", "10.0.0.1/24", "192.168.100.1/24")
	for _, tt := range []struct {
		ports []string
		want  string // a part; empty: nothing is said
	}{
		{nil, ""},
		{[]string{"0", "01:00.1", "roceP2p1s0f0", "enp1s0f1np1", "0002:01:00.1"}, ""},
		{[]string{"0", "2"}, "--fabric-port 2 names no port of spark1"},
		{[]string{"mlx5_0", "eth7"}, "--fabric-port mlx5_0 and eth7 names no port"},
		{[]string{"2"}, "there are: 01:00.0 (rocep1s0f0, roceP2p1s0f0); 01:00.1 (rocep1s0f1, roceP2p1s0f1)"},
	} {
		inv.FabricPorts = tt.ports
		got := inv.UnknownFabricPort()
		if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%q: %q, want %q", tt.ports, got, tt.want)
		}
	}
	bare := Inventory{Host: "laptop", FabricPorts: []string{"0"}}
	if got := bare.UnknownFabricPort(); !strings.Contains(got, "there are: none") {
		t.Errorf("without devices: %q", got)
	}
}
