package load

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// swept is the memory that all processors together read, in bytes: more than their caches hold.
	swept = 512 << 20
	// spins is how many rounds lie between two looks at the clock.
	spins = 1 << 12
)

// onProcessors loads all processors, first with arithmetic, then with reading.
func onProcessors(ctx context.Context, d time.Duration) Reached {
	cores := runtime.GOMAXPROCS(0)
	r := Reached{Via: "processors", Kind: "fp64"}
	r.Flops = together(ctx, cores, d*7/10, func(int) float64 {
		return spin(spins)
	})
	parts, size := make([][]uint64, cores), min(swept, swept*int(d/time.Millisecond)/int(Least/time.Millisecond))
	for i := range parts {
		parts[i] = make([]uint64, size/8/cores)
		for k := range parts[i] {
			parts[i][k] = uint64(k) // else all pages are one of zeros
		}
	}
	r.Read = together(ctx, cores, d*3/10, func(i int) float64 {
		kept[i%len(kept)] = sum(parts[i])
		return float64(len(parts[i]) * 8)
	})
	return r
}

// kept has results, so that nothing is left out as useless.
var kept [64]uint64

// together runs work on every core until the time is over, and gives what all did in a second.
func together(ctx context.Context, cores int, d time.Duration, work func(core int) float64) float64 {
	began := time.Now()
	done := make([]float64, cores)
	var wg sync.WaitGroup
	for i := range cores {
		wg.Go(func() {
			for first := true; first || time.Since(began) < d && ctx.Err() == nil; first = false {
				done[i] += work(i)
			}
		})
	}
	wg.Wait()
	all := 0.0
	for _, n := range done {
		all += n
	}
	return all / time.Since(began).Seconds()
}

// spin multiplies and adds in eight chains, which a processor can do at once, and gives how many operations that were.
func spin(rounds int) float64 {
	a, b, c, d, e, f, g, h := 1., 2., 3., 4., 5., 6., 7., 8.
	for range rounds {
		a, b, c, d = a*0.5+0.5, b*0.5+0.5, c*0.5+0.5, d*0.5+0.5
		e, f, g, h = e*0.5+0.5, f*0.5+0.5, g*0.5+0.5, h*0.5+0.5
	}
	if a+b+c+d+e+f+g+h < 0 {
		return 0
	}
	return float64(rounds * 16)
}

// sum reads it all.
func sum(all []uint64) uint64 {
	var a, b, c, d uint64
	for len(all) >= 4 {
		a, b, c, d = a+all[0], b+all[1], c+all[2], d+all[3]
		all = all[4:]
	}
	return a ^ b ^ c ^ d
}
