package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The figures are those of minefield's trap 124 (sound and short of power) and of
// DeepSeek-V4.1-Flash-vLLM-DGX-Spark#1, whose clock shows nothing.
func TestJudge(t *testing.T) {
	t.Parallel()
	spark := func(host string, flops, read, mhz float64) Load {
		return Load{Node: "id-" + host, Host: host, Via: "torch 2.13.0", Kind: "bf16", Flops: flops, Read: read,
			GPU: &GPU{Name: "NVIDIA GB10", Busy: new(0.96), MHz: new(mhz), MaxMHz: new(3003.0), Celsius: new(70.0)}}
	}
	sound := spark("spark1", 91.6e12, 230e9, 2281)
	other := sound
	other.Host, other.GPU = "h100", &GPU{Name: "NVIDIA H100", MHz: new(1400.0), MaxMHz: new(1980.0)}
	other.Flops = 600e12
	slowCPU := Load{Host: "pi", Via: "processors", Kind: "fp64", Flops: 1e9, Read: 1e9}
	hot := spark("spark2", 90e12, 228e9, 2200)
	hot.GPU.Throttle = []string{"sw_thermal_slowdown"}
	for name, tc := range map[string]struct {
		loads []Load
		want  []string // host code
		says  string
	}{
		"alike":             {[]Load{sound, spark("spark2", 90e12, 225e9, 2405), spark("spark3", 92e12, 231e9, 2390)}, nil, ""},
		"alone":             {[]Load{sound}, nil, ""},
		"unlike kinds":      {[]Load{sound, other, slowCPU}, nil, ""},
		"short of power":    {[]Load{sound, spark("spark2", 36.5e12, 228e9, 799)}, []string{"spark2 gpu-clock", "spark2 load-behind"}, "arithmetic 40 %"},
		"clock shows none":  {[]Load{sound, spark("spark2", 90e12, 70e9, 2190)}, []string{"spark2 load-behind"}, "reading memory 30 %"},
		"alone and slow":    {[]Load{spark("spark2", 60e12, 228e9, 1600)}, []string{"spark2 gpu-clock"}, "2281 to 2418"},
		"too hot":           {[]Load{sound, hot}, []string{"spark2 gpu-throttled"}, "too hot"},
		"one was not there": {[]Load{sound, {Host: "spark2", Error: "job k3x runs there"}}, nil, ""},
	} {
		var got []string
		var text strings.Builder
		for _, f := range Judge(tc.loads) {
			got = append(got, f.Host+" "+f.Code)
			text.WriteString(f.Text + f.Evidence)
			if f.Text == "" || f.Evidence == "" || f.Remedy == "" || strings.Contains(f.Text+f.Evidence, "%!") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || !strings.Contains(text.String(), tc.says) {
			t.Errorf("%s: -want +got:\n%s%s", name, diff, text.String())
		}
	}
}

// What was read before and after the load, when the GPU was idle, counts for nothing but its reasons.
func TestSummed(t *testing.T) {
	t.Parallel()
	at := func(use, mhz, watts, celsius float64, why ...string) GPU {
		return GPU{Busy: &use, MHz: &mhz, Watts: &watts, Celsius: &celsius, MaxMHz: new(3003.0), Throttle: why}
	}
	l := Load{GPU: &GPU{Name: "NVIDIA GB10"}}
	l.Summed([]GPU{at(0, 208, 4, 40, "gpu_idle"), at(0.96, 2400, 90, 60), at(1, 2300, 92, 70, "sw_thermal_slowdown"),
		at(0.97, 2200, 88, 68, "sw_thermal_slowdown"), at(0.1, 300, 9, 66)})
	want := GPU{Name: "NVIDIA GB10", Busy: new(0.97), MHz: new(2300.0), MaxMHz: new(3003.0), Watts: new(90.0),
		Celsius: new(70.0), Throttle: []string{"gpu_idle", "sw_thermal_slowdown"}}
	if diff := cmp.Diff(&want, l.GPU); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	none := Load{GPU: &GPU{Name: "NVIDIA GB10"}}
	none.Summed([]GPU{at(0, 208, 4, 40)})
	if g := none.GPU; g.MHz != nil || g.Watts != nil {
		t.Errorf("never seen busy: %+v", g)
	}
	(&Load{}).Summed([]GPU{at(1, 1, 1, 1)}) // no GPU was loaded
}
