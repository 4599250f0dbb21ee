package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// answered is a line of load's output: what became of one request.
type answered struct {
	ID     string    `json:"id"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended"`
	Via    string    `json:"via"`              // the URL that took it
	Engine string    `json:"engine,omitempty"` // that answered
	Stream bool      `json:"stream,omitempty"`
	Error  string    `json:"error,omitempty"` // why there is no whole answer
}

// clients ask one after the other, each a stream every other time.
type clients struct {
	model string
	urls  []string
	limit time.Duration // of one request
	http  *http.Client

	mu  sync.Mutex // of the output
	out *json.Encoder
}

// load has clients ask until it is interrupted, or for so many requests each, and prints what became of each. A client
// begins with one of the addresses. If no connection is made it goes on to the next and stays there; what has begun is
// asked once.
func load(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	n := fs.Int("clients", 8, "how many ask at once")
	most := fs.Int("requests", 0, "how many requests each makes; 0: until it is interrupted")
	limit := fs.Duration("limit", time.Minute, "how long an answer may take")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() < 2 {
		return errors.New("load: want MODEL URL...")
	}
	d := net.Dialer{Timeout: time.Second}
	c := &clients{model: fs.Arg(0), urls: fs.Args()[1:], limit: *limit, out: json.NewEncoder(os.Stdout)}
	c.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, unconnectedError{err}
			}
			return conn, nil
		}}}
	var group sync.WaitGroup
	for i := range *n {
		group.Go(func() {
			for at, k := i, 0; ctx.Err() == nil && (*most == 0 || k < *most); k++ {
				at = c.ask(fmt.Sprintf("c%d-%d", i, k), at, (i+k)%2 == 1)
			}
		})
	}
	group.Wait()
	return nil
}

// unconnectedError: nothing was sent.
type unconnectedError struct{ error }

// ask makes one request at the address number at or the next ones, and gives the number of the one that took it.
func (c *clients) ask(id string, at int, stream bool) int {
	a := answered{ID: id, Stream: stream}
	var failed unconnectedError
	for range c.urls {
		a.Began = time.Now() // of the one that takes it
		a.Via = c.urls[at%len(c.urls)]
		err := c.once(&a)
		if a.Error = ""; err != nil {
			a.Error = err.Error()
		}
		if !errors.As(err, &failed) {
			break
		}
		at++
	}
	a.Ended = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Encode(a) //nolint:errcheck // to the test's own pipe
	return at
}

func (c *clients) once(a *answered) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"short"}]}`, c.model, a.Stream)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.Via+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("X-Request-Id", a.ID)
	if a.Stream {
		r.Header.Set("X-Stream", "1")
	}
	res, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 500)) //nolint:errcheck // the status says enough
		return fmt.Errorf("status %d: %s", res.StatusCode, text)
	}
	if !a.Stream {
		var whole struct {
			ID      string
			Choices []struct{ Message struct{ Content string } }
		}
		if err := json.NewDecoder(res.Body).Decode(&whole); err != nil {
			return err
		}
		if a.Engine = whole.ID; len(whole.Choices) != 1 || whole.Choices[0].Message.Content != "hello" {
			return fmt.Errorf("answer %+v", whole)
		}
		return nil
	}
	tokens := 0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		switch text := lines.Text(); {
		case text == "data: [DONE]" && tokens == 5:
			return nil
		case strings.Contains(text, `"error"`):
			return errors.New(text)
		case strings.Contains(text, `"content":"t`):
			tokens++
			_, id, _ := strings.Cut(text, `"id":"`)
			a.Engine, _, _ = strings.Cut(id, `"`)
		}
	}
	return fmt.Errorf("the stream ended after %d tokens", tokens)
}
