package web

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// actWithin bounds an action; the leader goes on with what it has recorded.
	actWithin = 30 * time.Second
	// examineWithin bounds doctor and why, modelsWithin the question for models.
	examineWithin, modelsWithin = 2 * time.Minute, 10 * time.Second
	// modelsEach is how old the list of models may get while somebody looks at it.
	modelsEach = 10 * time.Second
	// findWithin is how long a job is looked for that is to be acted on.
	findWithin = 3 * time.Second
)

// question is what a page asks for.
type question struct {
	Does, Verb, Text string
	Row              jobRow
	Token            string
	Error            string
}

var questions = map[string]question{
	"stop":    {Does: "stop", Verb: "Stop", Text: "Its ranks get TERM on all machines, and are killed after its grace."},
	"restart": {Does: "restart", Verb: "Restart", Text: "Its ranks end and start anew: requests under way are lost. It counts as one of its --restart."},
}

// confirm asks before an action.
func (w *Web) confirm(does string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) { w.ask(rw, r, does, nil, http.StatusOK) }
}

func (w *Web) ask(rw http.ResponseWriter, r *http.Request, does string, failed error, status int) {
	defer w.seen.watch()()
	p := w.page(r, w.seen.first(r.Context(), findWithin))
	if r.Method == http.MethodPost {
		p.q = r.PostForm
	}
	j, ok := p.find()
	if !ok && failed != nil {
		http.Error(rw, plain.Line(failed.Error()), status)
		return
	} else if !ok {
		none := draw("job", "none", struct{ ID, What string }{"job", "job"})
		w.frame(rw, p, "job", "", "Job", whole(none), http.StatusNotFound)
		return
	}
	q := questions[does]
	q.Row, q.Token = p.jobOf(j), p.visit.formToken(does, string(j.Spec.ID))
	if failed != nil {
		q.Error = plain.Line(failed.Error())
	}
	w.frame(rw, p, "job", "", q.Verb, whole(draw("question", "question", q)), status)
}

// act does what was confirmed, with the rights of the visitor.
func (w *Web) act(does string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), actWithin)
		defer cancel()
		id, to := r.PostForm.Get("id"), w.cfg.As(visiting(r).Of)
		var err error
		if does == "stop" {
			_, err = wire.Stop.Call(ctx, to, wire.StopRequest{Job: id})
		} else {
			_, err = wire.Restart.Call(ctx, to, wire.JobRequest{Job: id})
		}
		if err != nil {
			status := http.StatusConflict
			if errors.Is(err, wire.ErrDenied) {
				status = http.StatusForbidden
			}
			w.ask(rw, r, does, err, status)
			return
		}
		http.Redirect(rw, r, visiting(r).folder()+"job?id="+url.QueryEscape(id), http.StatusSeeOther)
	}
}

// answer is what was asked for once, and is shown until it is asked for again.
type answer[T any] struct {
	mu    sync.Mutex
	asks  bool
	at    time.Time // when it was answered; zero: it was not
	of    string    // what it is about
	value T
	err   error
}

// ask asks if it is not asked already, and the answer is older than that.
func (a *answer[T]) ask(w *Web, of string, older, within time.Duration, fn func(context.Context) (T, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asks || !a.at.IsZero() && time.Since(a.at) < older {
		return
	}
	if a.of != of {
		var none T
		a.of, a.at, a.value, a.err = of, time.Time{}, none, nil
	}
	a.asks = true
	w.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(w.ctx, within)
		defer cancel()
		value, err := fn(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asks, a.at, a.value, a.err = false, time.Now(), value, err
	})
}

// answered is what a page shows of it.
type answered[T any] struct {
	Asks  bool
	At    time.Time
	Of    string
	Value T
	Error string
}

func (a *answer[T]) now() answered[T] {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := answered[T]{Asks: a.asks, At: a.at, Of: a.of, Value: a.value}
	if a.err != nil {
		out.Error = plain.Line(a.err.Error())
	}
	return out
}

// examine has doctor look; the page shows what it finds when it is done.
func (w *Web) examine(rw http.ResponseWriter, r *http.Request) {
	v := visiting(r)
	v.doctor.ask(w, "", 0, examineWithin, func(ctx context.Context) (wire.DoctorResponse, error) {
		w.examining.Lock() // one after the other: it sends packets
		defer w.examining.Unlock()
		return wire.Doctor.Call(ctx, w.cfg.As(v.Of), wire.DoctorRequest{})
	})
	http.Redirect(rw, r, v.folder()+"doctor", http.StatusSeeOther)
}

func (p *page) doctor() part {
	now := p.visit.doctor.now()
	for _, f := range p.Known().Findings { // errors may have come since it was asked
		known := slices.ContainsFunc(now.Value.Findings, func(o envgen.Finding) bool {
			return o.Code == f.Code && o.Host == f.Host && o.Port == f.Port
		})
		if now.At.IsZero() || f.Severity == envgen.SeverityError && !known {
			now.Value.Findings = append(slices.Clip(now.Value.Findings), f)
		}
	}
	now.Value.Findings = doctor.Together(now.Value.Findings)
	return draw("doctor", "doctor", struct {
		answered[wire.DoctorResponse]
		Token string
	}{now, p.visit.formToken("doctor", "")})
}

// askWhy has it looked for what ails a job, a service or a machine, with the rights of the visitor.
func (w *Web) askWhy(rw http.ResponseWriter, r *http.Request) {
	v, of := visiting(r), r.PostForm.Get("id")
	v.why.ask(w, of, 0, examineWithin, func(ctx context.Context) (wire.WhyResponse, error) {
		return wire.Why.Call(ctx, w.cfg.As(v.Of), wire.WhyRequest{Of: of})
	})
	http.Redirect(rw, r, v.folder()+"why?id="+url.QueryEscape(of), http.StatusSeeOther)
}

// asks is the form of a button that has it asked why.
type asks struct {
	Of, Token, Text string
	Busy            bool
}

func (p *page) asks(of, text string) asks { return asks{of, p.visit.formToken("why", of), text, false} }

func (p *page) why() part {
	of := p.q.Get("id")
	now := p.visit.why.now()
	if now.Of != of { // it was not asked, or something else was since
		now = answered[wire.WhyResponse]{}
	}
	d := struct {
		answered[wire.WhyResponse]
		Job, Name string
		Form      asks
	}{now, "", of, p.asks(of, "Look again")}
	if j, ok := p.find(); ok {
		d.Job, d.Name = of, cmp.Or(j.Spec.Name, of)
	}
	if d.Form.Busy = now.Asks; now.Asks {
		d.Form.Text = "Looking, for some seconds …"
	}
	return draw("why", "why", d)
}

// modelRow is a model on a page.
type modelRow struct {
	Name, Type string
	Bytes      int64
	Whole      []string // hosts
	Partly     []string // hosts, and how much they have
	Notes      []string
}

func (p *page) models() part {
	v := p.visit
	v.models.ask(p.web, "", modelsEach, modelsWithin, func(ctx context.Context) ([]wire.NodeModels, error) {
		res, err := wire.Models.Call(ctx, p.web.cfg.As(v.Of), wire.ModelsRequest{})
		return res.Nodes, err
	})
	now := v.models.now()
	rows := map[string]*modelRow{}
	var errs []string
	for _, n := range now.Value {
		if n.Error != "" {
			errs = append(errs, n.Host+": "+n.Error)
		}
		for _, h := range n.Held {
			row := rows[h.Repo.Type+" "+h.Repo.Name]
			if row == nil {
				row = &modelRow{Name: h.Repo.Name, Type: h.Repo.Type}
				rows[h.Repo.Type+" "+h.Repo.Name] = row
			}
			row.add(n.Host, h)
		}
	}
	all := []*modelRow{}
	for _, row := range rows {
		all = append(all, row)
	}
	slices.SortFunc(all, func(a, b *modelRow) int { return strings.Compare(a.Name+" "+a.Type, b.Name+" "+b.Type) })
	return draw("models", "models", struct {
		answered[[]wire.NodeModels]
		Rows   []*modelRow
		Errors []string
	}{now, all, errs})
}

func (m *modelRow) add(host string, h wire.HeldModel) {
	m.Bytes = max(m.Bytes, h.Bytes)
	whole, share := false, 0.0
	for _, c := range h.Commits {
		whole = whole || c.Whole()
		if c.Bytes > 0 {
			share = max(share, float64(c.Have)/float64(c.Bytes))
		}
	}
	if whole {
		m.Whole = append(m.Whole, host)
	} else {
		m.Partly = append(m.Partly, host+" "+percent(share))
	}
	switch {
	case h.Pulling != "":
		m.Notes = append(m.Notes, host+" fetches it")
	case h.Why != "":
		m.Notes = append(m.Notes, host+": "+h.Why)
	case h.Denied:
		m.Notes = append(m.Notes, "you may not read it on "+host)
	}
}
