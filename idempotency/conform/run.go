package conform

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Why nothing could be checked.
var (
	// ErrTarget says that the target cannot be reached.
	ErrTarget = errors.New("the target cannot be reached")
	// ErrOrigin says that the target does not forward to the origin.
	ErrOrigin = errors.New("the target does not lead to the origin")
)

// kit is one run.
type kit struct {
	options Options
	terms   terms
	target  *url.URL
	base    string // of the targets of requests
	name    string // of the run
	alike   bool   // a service gives the same answer to each run
}

// Run checks the target. A failed case is not an error. It returns ErrTarget, ErrOrigin or ErrService
// if nothing could be checked, the cause of ctx if that ended, and otherwise an error that names a
// wrong option.
func Run(ctx context.Context, o *Options) (*Report, error) {
	options, target, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	k := &kit{
		options: options,
		terms:   termsOf(&options),
		target:  target,
		base:    strings.TrimSuffix(target.EscapedPath(), "/") + prefix,
		name:    strings.ToLower(rand.Text()[:10]),
	}
	probe := k.probe
	if options.Service {
		k.base, probe = cmp.Or(target.EscapedPath(), "/"), k.try
	}
	if err := probe(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	began := time.Now()
	report := &Report{Target: target.Redacted(), Profile: options.Profile, Name: k.name}
	for _, c := range casesOf(options.Profile) {
		report.Results = append(report.Results, Result{Case: c})
	}
	k.all(ctx, report.Results)
	report.Took = time.Since(began)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return report, nil
}

// probe sends one request, and checks that it arrives.
func (k *kit) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.options.Timeout)
	defer cancel()
	t := k.trial(ctx, "probe")
	defer t.end()
	l, err := dial(ctx, k.target)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrTarget, k.target.Host, err)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	a := new(reply)
	if a.err = l.send(t.request()); a.err == nil {
		a = l.reply("POST")
	}
	seen := t.seen(0)
	switch {
	case len(seen) > 0 && a.err == nil && a.run() != 0:
		return nil
	case len(seen) > 0:
		return fmt.Errorf("%w: a request arrived there, and what came back was not its answer, but %v", ErrOrigin, a)
	}
	return fmt.Errorf("%w: a POST to %s%s/ did not arrive there, and was answered %v", ErrOrigin, k.target.Host, k.base+t.id, a)
}

// all runs the cases, several at once, and then those that must be alone.
func (k *kit) all(ctx context.Context, results []Result) {
	var group sync.WaitGroup
	var mu sync.Mutex
	done, failed := 0, 0
	ended := func(r *Result) {
		mu.Lock()
		defer mu.Unlock()
		if done++; r.Outcome == Failed {
			failed++
		}
		if k.options.Progress != nil {
			k.options.Progress(done, len(results), failed)
		}
	}
	free := make(chan struct{}, k.options.Parallel)
	for i := range results {
		if !results[i].Case.alone {
			free <- struct{}{}
			group.Go(func() {
				k.one(ctx, &results[i])
				ended(&results[i])
				<-free
			})
		}
	}
	group.Wait()
	for i := range results {
		if results[i].Case.alone {
			k.one(ctx, &results[i])
			ended(&results[i])
		}
	}
}

// one runs a case, or notes why it is skipped.
func (k *kit) one(ctx context.Context, r *Result) {
	if r.Why = k.terms.skips(&r.Case, &k.options); r.Why != "" {
		r.Outcome = Skipped
		return
	}
	if missing := k.unjudged(&r.Case); missing != "" {
		r.Outcome, r.Why = NotJudged, "not judged: needs "+missing
		return
	}
	ctx, cancel := context.WithTimeout(ctx, k.options.Timeout)
	defer cancel()
	began := time.Now()
	t := k.trial(ctx, r.Case.ID)
	t.run(r.Case.check)
	r.Took = time.Since(began)
	if ctx.Err() != nil {
		t.wrongf("the case was not over after %v", k.options.Timeout)
	}
	if r.Saw = t.wrong; len(r.Saw) > 0 {
		r.Outcome = Failed
		return
	}
	r.Outcome = Passed
}
