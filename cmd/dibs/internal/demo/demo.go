// Package demo is dibs demo: a payments service, first bare, then behind dibs,
// in the same storm.
package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Options of a demo.
type Options struct {
	// Store is the URL of a store that several processes can share; "" makes a
	// SQLite file in a temporary folder.
	Store string
	// Secret says that the URL has a password in it, and is not to be printed.
	Secret bool
	// Namespace in that store.
	Namespace string
	// Exit ends the demo after the table.
	Exit bool
}

// ErrWrong says that with dibs, an order was charged twice or not at all.
var ErrWrong = errors.New("an order was charged twice, or was lost, behind dibs")

// Run runs the demo. It returns when ctx ends (after the table, unless
// Options.Exit), and an ErrWrong when dibs did not do what it is for.
func Run(ctx context.Context, o Options, out io.Writer) error {
	path, name, err := program()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "dibs-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &demo{
		program:   path,
		dir:       dir,
		store:     cmp.Or(o.Store, "sqlite:"+filepath.Join(dir, "dibs.db")),
		namespace: cmp.Or(o.Namespace, fmt.Sprintf("demo-%d", os.Getpid())),
	}
	if !o.Secret { // else it has to be in the environment of whoever looks
		d.shown = " --store '" + d.store + "'"
	}
	fmt.Fprintf(out, `A payments service, and two proxies before it. %d orders come in, each sent %d
times at once, by clients that lose patience after %v and retry. Half-way, one
of the proxies is killed with -9.

`, orders, copies, patience)
	bare, err := d.run(ctx, false)
	if err != nil {
		return err
	}
	with, err := d.run(ctx, true)
	if err != nil {
		return err
	}
	defer with.close()
	writeTable(out, bare, with)
	if with.double > 0 || with.lost > 0 || with.unanswered > 0 {
		return ErrWrong
	}
	if o.Exit {
		return nil
	}
	serveOn(out, d, with, name)
	<-ctx.Done()
	return nil
}

// demo is one run of the program.
type demo struct {
	program   string
	dir       string
	store     string
	shown     string // the flag that names it
	namespace string
}

// result is what a storm left.
type result struct {
	requests, charges  int
	double, lost       int // orders
	ordered, charged   int // cents
	replays, conflicts int
	settled, errors    int
	unanswered         int
	took               time.Duration

	payments *payments
	survivor *proxyProcess
}

func (r *result) close() {
	r.survivor.stop()
	r.payments.close()
}

// lease of the demo's proxies: the shortest, so that the crash is over soon.
const lease = "1s"

// run blows the storm at two proxies, which guard or do not.
func (d *demo) run(ctx context.Context, guard bool) (*result, error) {
	name := "bare"
	if guard {
		name = "dibs"
	}
	service, err := startPayments(filepath.Join(d.dir, name+".ledger"))
	if err != nil {
		return nil, err
	}
	r := &result{payments: service}
	flags := []string{
		"--upstream", service.url, "--namespace", d.namespace, "--any-host",
		"--lease", lease, "--on-crash", "at-most-once", fmt.Sprintf("--guard=%v", guard),
	}
	var proxies [2]*proxyProcess
	for i := range proxies {
		if proxies[i], err = startProxy(d.program, d.store, flags...); err != nil {
			r.survivor = proxies[0]
			r.close()
			return nil, err
		}
	}
	r.survivor = proxies[1]
	s := newStorm([2]string{proxies[0].url, proxies[1].url})
	if guard {
		s.unknown = func(ctx context.Context, c charge, instance string) error { return d.settle(ctx, service, c, instance) }
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		select {
		case <-service.crash:
		case <-ctx.Done():
		}
		proxies[0].kill()
		close(service.crashed)
	}()
	began := time.Now()
	s.blow(ctx)
	if ctx.Err() != nil {
		<-killed
		r.close()
		return nil, context.Cause(ctx)
	}
	r.took = time.Since(began)
	select {
	case <-killed:
	default:
		// The order for it never arrived: nobody is killed.
		proxies[0].stop()
	}
	if err := r.count(s); err != nil {
		r.close()
		return nil, err
	}
	if !guard {
		r.close()
	}
	return r, nil
}

// settle does what an operator does: look into the ledger whether the charge
// that was cut off was made, and say so.
func (d *demo) settle(ctx context.Context, service *payments, c charge, instance string) error {
	ledger, err := service.read()
	if err != nil {
		return err
	}
	args := []string{instance, "--namespace", d.namespace}
	made := ledger[c.Order]
	if len(made) == 0 {
		return settle(ctx, d.program, d.store, append(args, "--rerun")...)
	}
	body, err := json.Marshal(made[0])
	if err != nil {
		return err
	}
	return settle(ctx, d.program, d.store, append(args, "--status", "201", "--header", "Content-Type: application/json", "--body", string(body))...)
}

// count compares the ledger with the orders.
func (r *result) count(s *storm) error {
	ledger, err := r.payments.read()
	if err != nil {
		return err
	}
	for i := range orders {
		name := fmt.Sprintf("order-%d", i+1)
		if i == orders/2 {
			name = crashOrder
		}
		r.ordered += amount(i)
		switch n := len(ledger[name]); {
		case n == 0:
			r.lost++
		case n > 1:
			r.double++
		}
		for _, c := range ledger[name] {
			r.charges++
			r.charged += c.Amount
		}
	}
	r.requests = int(s.requests.Load())
	r.replays = int(s.replays.Load())
	r.conflicts = int(s.conflicts.Load())
	r.settled = int(s.settled.Load())
	r.errors = int(s.errors.Load())
	r.unanswered = int(s.failed.Load())
	return nil
}
