package storetest

import "github.com/dibs-go/dibs"

var idleProperties = []Property{
	{
		Name: "IdleKeysAreTold",
		Why:  "A job that waits in a worker waits for others' work to end. When the key lies idle there is none: the one that is next may be waiting for the very worker.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, a, b, jobs := key("k"), dibs.NewToken(), dibs.NewToken(), tokens(2)
			asked := func(when string, idle bool) {
				t.Helper()
				t.idle("a stranger that tries "+when, p.try(k, dibs.NewToken()), idle)
				t.idle("a stranger that looks "+when, q.look(k), idle)
				t.idle("the second job, trying "+when, q.try(k, dibs.NewToken(), from(jobs[1])), idle)
				t.idle("the second job, looking "+when, p.look(k, from(jobs[1])), idle)
				t.idle("the waiter, asking again "+when, q.queue(k, b), idle)
				t.idle("reserving the second again "+when, p.reserve(k, jobs[1]), idle)
			}
			t.granted("the holder", p.try(k, a), 1)
			t.idle("reserving the first, while the key is held", p.reserve(k, jobs[0]), false)
			t.idle("reserving the second, while the key is held", p.reserve(k, jobs[1]), false)
			t.idle("a waiter, while the key is held", q.queue(k, b), false)
			t.idle("the first job, before its turn", p.try(k, dibs.NewToken(), from(jobs[0])), false)
			asked("while the key is held", false)
			t.ok("release", p.release(k, a))
			asked("while nobody comes for the first place", true)
			t.idle("reserving the first again, whose turn it is", p.reserve(k, jobs[0]), false)
			t.granted("the first job", q.try(k, a, from(jobs[0])), 1)
			t.idle("the first job's other worker", p.try(k, dibs.NewToken(), from(jobs[0])), false)
			asked("while the first job runs", false)
			t.ok("abandon", q.abandon(k, a))
			asked("while nobody comes for the first place again", true)
			t.ok("giving the first place up", p.release(k, jobs[0]))
			t.ok("giving the second place up", p.release(k, jobs[1]))
			t.idle("a stranger, while it is the waiter's turn", p.try(k, dibs.NewToken()), false)
		},
	},
	{
		Name: "IdlePermitsAreTold",
		Why:  "With several permits a key lies idle though some hold it, and not when all are taken. A job whose place is taken waits for its own other worker, whoever else is in the way.",
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			k, as, jobs := key("k"), tokens(2), tokens(2)
			t.waits("reserving", p.reserve(k, jobs[0], permits(2)), 0)
			t.granted("the first job", q.try(k, as[0], from(jobs[0]), permits(2)), 1)
			t.waits("reserving", p.reserve(k, jobs[1], permits(2)), 0)
			t.idle("a stranger", q.try(k, dibs.NewToken(), permits(2)), true)
			t.idle("the first job's other worker", q.try(k, dibs.NewToken(), from(jobs[0]), permits(2)), false)
			t.idle("the first job's place", p.try(k, jobs[0], permits(2)), false)
			t.idle("the first job's place, looking", p.look(k, from(jobs[0]), permits(2)), false)
			t.granted("the second job", q.try(k, as[1], from(jobs[1]), permits(2)), 1)
			t.idle("a stranger, when both run", q.try(k, dibs.NewToken(), permits(2)), false)
			t.ok("the first abandons", q.abandon(k, as[0]))
			t.idle("a stranger, when one runs", q.try(k, dibs.NewToken(), permits(2)), true)
		},
	},
}

// idle fails the trial unless the answer is Held, and says so whether the key lies
// idle.
func (t *Trial) idle(what string, a dibs.Answer, idle bool) {
	t.Helper()
	if t.state(what, a, dibs.Held); a.Idle != idle {
		t.Fatalf("%s: Idle is %v, want %v", what, a.Idle, idle)
	}
}
