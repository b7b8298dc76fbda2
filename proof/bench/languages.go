package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A language is a client and a peer that talks to Redis itself.
type language struct {
	name        string
	interpreter string
	script      string   // in languages
	variables   []string // CLIENTS and PEERS are folders
	peer        string   // "" for none
	install     []string // installs the peer in PEERS
}

var (
	python = language{
		name: "Python", interpreter: "/usr/bin/python3", script: "lock.py",
		variables: []string{"PYTHONPATH=CLIENTS/python:PEERS", "PYTHONDONTWRITEBYTECODE=1"},
		peer:      "redis-py", install: []string{"/usr/bin/python3", "-m", "pip", "install", "--quiet", "--retries", "0", "--target", "PEERS", "redis"},
	}
	ruby       = language{name: "Ruby", interpreter: "ruby", script: "lock.rb", variables: []string{"RUBYLIB=CLIENTS/ruby/lib"}}
	javaScript = language{
		name: "JavaScript", interpreter: "node", script: "lock.mjs",
		variables: []string{"DIBS_CLIENT=CLIENTS/js/dibs.js", "REDLOCK=PEERS"},
		peer:      "redlock", install: []string{"npm", "install", "--silent", "--prefix", "PEERS", "redlock", "ioredis"},
	}
)

// errAbsent is the error of a peer that cannot be loaded.
var errAbsent = errors.New("it is not installed")

// calls measures how often a process locks and unlocks a second, with our client and with the peer.
func (l language) calls(ctx context.Context, c config) (figure, error) {
	s, err := newServed(ctx, c, nil)
	if err != nil {
		return figure{}, err
	}
	defer s.end()
	peers, err := os.MkdirTemp("", "dibs-bench-")
	if err != nil {
		return figure{}, err
	}
	defer os.RemoveAll(peers)
	clients, err := filepath.Abs("../../clients")
	if err != nil {
		return figure{}, err
	}
	folders := strings.NewReplacer("CLIENTS", clients, "PEERS", peers)
	peer := l.peer
	if peer != "" {
		install := make([]string, len(l.install))
		for i, arg := range l.install {
			install[i] = folders.Replace(arg)
		}
		if out, err := exec.CommandContext(ctx, install[0], install[1:]...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v: %s\n", strings.Join(install, " "), err, out) // the system may have it
		}
	}
	run := func(side, address string) (float64, error) {
		cmd := exec.CommandContext(ctx, l.interpreter, filepath.Join("languages", l.script), side, address, strconv.FormatFloat(c.round.Seconds(), 'f', 3, 64))
		cmd.Env = os.Environ()
		for _, v := range l.variables {
			cmd.Env = append(cmd.Env, folders.Replace(v))
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == 3 {
			return 0, errAbsent
		}
		if err != nil {
			return 0, fmt.Errorf("%s %s: %w", l.script, side, err)
		}
		return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	}
	mine := func(context.Context, time.Duration) (float64, error) { return run(ours, "unix:"+s.socket) }
	if peer != "" {
		theirs := func(context.Context, time.Duration) (float64, error) { return run(peer, s.server.URL()) }
		f, err := interleave(ctx, c, "lock+unlock/s", mine, theirs)
		if !errors.Is(err, errAbsent) {
			return f, err
		}
	}
	f := figure{unit: "lock+unlock/s"}
	for round := range c.rounds + 1 {
		one, err := mine(ctx, c.round)
		if err != nil {
			return f, err
		}
		if round > 0 { // the first one warms up
			f.value = append(f.value, one)
		}
	}
	f.detail = "no peer"
	return f, nil
}
