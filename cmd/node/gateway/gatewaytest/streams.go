package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// streams has n streams at once, each of 10 s, and prints how many came whole, and when the first token was there.
func streams(ctx context.Context, url string, n int) error {
	var mu sync.Mutex
	var first []time.Duration
	whole := 0
	var group sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: n, ReadBufferSize: 2 << 10, WriteBufferSize: 1 << 10,
	}}
	for i := range n {
		group.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			began := time.Now()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions",
				strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"long"}]}`))
			if err != nil {
				return
			}
			res, err := client.Do(r)
			if err != nil {
				return
			}
			defer res.Body.Close()
			lines := bufio.NewScanner(res.Body)
			for tokens := 0; lines.Scan(); {
				switch text := lines.Text(); {
				case text == "data: [DONE]":
					mu.Lock()
					whole++
					mu.Unlock()
				case strings.HasPrefix(text, "data: "):
					if tokens++; tokens == 1 {
						mu.Lock()
						first = append(first, time.Since(began))
						mu.Unlock()
					}
				}
			}
		})
	}
	group.Wait()
	slices.Sort(first)
	if len(first) == 0 {
		return fmt.Errorf("no stream of %d began", n)
	}
	fmt.Printf("whole=%d p50=%.1f p99=%.1f\n", whole, ms(first[len(first)/2]), ms(first[len(first)*99/100]))
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
