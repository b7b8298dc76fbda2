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
	ruby = language{
		name: "Ruby", interpreter: "ruby", script: "lock.rb", variables: []string{"RUBYLIB=CLIENTS/ruby/lib", "GEMS=PEERS"},
		peer: "redis-rb", install: []string{"gem", "install", "--quiet", "--no-document", "--install-dir", "PEERS", "redis"},
	}
	javaScript = language{
		name: "JavaScript", interpreter: "node", script: "lock.mjs",
		variables: []string{"DIBS_CLIENT=CLIENTS/js/dibs.js", "REDLOCK=PEERS"},
		peer:      "redlock", install: []string{"npm", "install", "--silent", "--prefix", "PEERS", "redlock", "ioredis"},
	}
)

// against returns the language with another peer.
func (l language) against(peer string) language {
	l.peer = peer
	return l
}

// calls measures how often a process locks and unlocks a second, with our client and with the peer. args say how many callers
// it has.
func (l language) calls(args ...string) func(context.Context, config) figure {
	return with(openServed(nil), func(ctx context.Context, c config, b *candidates) figure {
		peers, clients := b.folder(), get(filepath.Abs("../../clients"))
		folders := strings.NewReplacer("CLIENTS", clients, "PEERS", peers)
		if l.peer != "" {
			install := make([]string, len(l.install))
			for i, arg := range l.install {
				install[i] = folders.Replace(arg)
			}
			if out, err := exec.CommandContext(ctx, install[0], install[1:]...).CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "bench: %s: %v: %s\n", strings.Join(install, " "), err, out) // the system may have it
			}
		}
		absent, each := false, ""
		run := func(name, address string) side {
			return func(ctx context.Context, _ int) float64 {
				cmd := exec.CommandContext(ctx, l.interpreter, append([]string{
					filepath.Join("languages", l.script), name, address, strconv.FormatFloat(c.round.Seconds(), 'f', 3, 64),
				}, args...)...)
				cmd.Env = os.Environ()
				for _, v := range l.variables {
					cmd.Env = append(cmd.Env, folders.Replace(v))
				}
				cmd.Stderr = os.Stderr
				out, err := cmd.Output()
				if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == 3 {
					absent = true // the peer cannot be loaded
					return 0
				}
				must(err)
				said := strings.Fields(string(out)) // how often a second, and how many calls a lock takes, if the script counts them
				if name == ours && len(said) > 1 {
					each = fmt.Sprintf(", %s HTTP calls a lock", count(get(strconv.ParseFloat(said[1], 64))))
				}
				return get(strconv.ParseFloat(said[0], 64))
			}
		}
		mine, theirs := run(ours, "unix:"+b.socket), run(l.peer, b.redis.URL())
		if l.peer != "" {
			if theirs(ctx, 0); !absent {
				f := interleave(ctx, c, "lock+unlock/s", mine, theirs)
				f.detail += each
				return f
			}
		}
		return figure{unit: "lock+unlock/s", value: c.turns(ctx, mine)[0], detail: "no peer"}
	})
}
