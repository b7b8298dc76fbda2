// Package demo is dibs demo. Processes add to one number, and the same duplicate requests come to
// a payments service: both first without dibs, and then with it.
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

// Options configure Run.
type Options struct {
	// Store is the URL of a store that several processes can share. Default: a SQLite file
	// in a temporary folder.
	Store string
	// Secret says that the URL has a password, so that Run does not print it.
	Secret bool
	// Exit ends the demo after the table.
	Exit bool
}

// ErrWrong says that behind dibs an order was charged twice or not at all.
var ErrWrong = errors.New("an order was charged twice, or was lost, behind dibs")

// Run runs the demo and writes what happened to out. Unless Options.Exit is set, it continues to
// serve after the table until ctx is cancelled. It returns ErrWrong if dibs failed with the
// payments, and ErrNotShown unless updates of the number were lost without dibs and
// none with it.
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
	if dir, err = filepath.Abs(dir); err != nil { // because TMPDIR can be relative
		return err
	}
	d := &demo{
		program:   path,
		dir:       dir,
		store:     cmp.Or(o.Store, "sqlite:"+filepath.Join(dir, "dibs.db")),
		namespace: fmt.Sprintf("demo-%d", os.Getpid()),
	}
	if err := d.showNumber(ctx, out); err != nil {
		return err
	}
	fmt.Fprintf(out, `A payments service, and two proxies in front of it. %d orders come in, each sent
%d times at once, by clients that give up after %v and retry. Half-way, one
of the proxies is killed with -9.

`, orders, copies, timeout)
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
	if with.double > 0 || with.lost > 0 || with.unanswered.Load() > 0 {
		return ErrWrong
	}
	if o.Exit {
		return nil
	}
	store := " --store '" + d.store + "'"
	if o.Secret {
		store = "" // it is in the environment
	}
	fmt.Fprintf(out, `The other proxy keeps serving, until Ctrl-C. Send this twice, and look:

  curl -i %[1]s/charges -H 'Idempotency-Key: "mine"' -d '{"order":"mine","amount":1999}'
  tail -n 3 %[2]s
  %[3]s show%[4]s --namespace %[5]s --glob '*:mine'

Then change the amount and send it again. The page for operators shows the last five
minutes, and finds your key:

  %[6]s

`, with.proxy.url, with.payments.file.Name(), name, store, d.namespace, with.proxy.page)
	<-ctx.Done()
	return nil
}

// demo is one run of the program.
type demo struct {
	program   string
	dir       string
	store     string
	namespace string
}

// result is the outcome of one round of traffic.
type result struct {
	*traffic
	charges          int
	double, lost     int // orders
	ordered, charged int // cents
	took             time.Duration

	payments *payments
	proxy    *proxyProcess // the one that was not killed
}

func (r *result) close() {
	r.proxy.stop()
	r.payments.close()
}

// run sends the traffic through two proxies, with or without their guard.
func (d *demo) run(ctx context.Context, guard bool) (_ *result, err error) {
	name := "bare"
	if guard {
		name = "dibs"
	}
	r := new(result)
	if r.payments, err = startPayments(filepath.Join(d.dir, name+".charges")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil || !guard {
			r.close()
		}
	}()
	// The lease is the shortest, so that the killed proxy's key is free soon.
	flags := []string{"--upstream", r.payments.url, "--namespace", d.namespace, "--lease", "1s", "--on-crash", "at-most-once"}
	killed, err := d.startProxy(guard, flags...)
	if err != nil {
		return nil, err
	}
	if r.proxy, err = d.startProxy(guard, flags...); err != nil {
		killed.stop()
		return nil, err
	}
	r.traffic = newTraffic([2]string{killed.url, r.proxy.url})
	if guard {
		r.unknown = func(ctx context.Context, c charge, instance string) error {
			return d.resolve(ctx, r.payments, c, instance)
		}
	}
	sent, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-r.payments.crash:
		case <-sent: // the order for the crash did not arrive
		}
		killed.kill()
		close(r.payments.crashed)
	}()
	began := time.Now()
	r.send(ctx)
	r.took = time.Since(began)
	close(sent)
	<-ended
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.count()
	return r, nil
}

// resolve does the work of an operator: it looks whether the charge of a crashed request was
// made, and resolves the request.
func (d *demo) resolve(ctx context.Context, service *payments, c charge, instance string) error {
	args := []string{"resolve", "--yes", instance, "--namespace", d.namespace, "--rerun"}
	if made := service.made(c.Order); len(made) > 0 {
		body, err := json.Marshal(made[0])
		if err != nil {
			return err
		}
		args = append(args[:len(args)-1], "--status", "201", "--header", "Content-Type: application/json", "--body", string(body))
	}
	return d.command(ctx, args...).Run()
}

// count compares the charges with the orders.
func (r *result) count() {
	for i := range orders {
		made := r.payments.made(orderName(i))
		r.ordered += amount(i)
		switch {
		case len(made) == 0:
			r.lost++
		case len(made) > 1:
			r.double++
		}
		for _, c := range made {
			r.charges++
			r.charged += c.Amount
		}
	}
}
