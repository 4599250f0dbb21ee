package metrics

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
)

// target is what Prometheus' http_sd_configs read: https://prometheus.io/docs/prometheus/latest/http_sd.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// targets are all members, and all services that have metrics, each at the member where it runs. Where members listen
// on loopback alone Prometheus runs here, reaches no other member, and gets all services from this one.
func (m *Metrics) targets(told gateway.Told) []target {
	port := strconv.Itoa(int(m.cfg.Port))
	here := net.JoinHostPort(netip.AddrFrom4([4]byte{127, 0, 0, 1}).String(), port)
	at := map[string]string{m.cfg.Host: here}
	out := []target{}
	add := func(host, path string, labels ...string) {
		of, scheme := at[host], "http"
		if of == "" {
			of = at[m.cfg.Host]
		}
		if told.Admits && told.Secured {
			scheme = "https"
		}
		all := map[string]string{"__metrics_path__": path, "__scheme__": scheme}
		labels = append(labels, "sparkrun_host", host)
		for i := 0; i < len(labels); i += 2 {
			if labels[i+1] != "" {
				all[labels[i]] = labels[i+1]
			}
		}
		out = append(out, target{[]string{of}, all})
	}
	if told.Admits {
		for _, member := range m.cfg.Members() {
			if !member.Addr.IsValid() {
				continue
			}
			at[member.Host] = net.JoinHostPort(member.Addr.Addr().String(), port)
			add(member.Host, own)
		}
	} else {
		add(m.cfg.Host, own)
	}
	for _, b := range told.Backends {
		if b.Metrics != "" && !b.Asleep() {
			add(b.Host, ofService+string(b.Job), "sparkrun_job", string(b.Job), "sparkrun_name", b.Name, "model", b.Models[0])
		}
	}
	return out
}
