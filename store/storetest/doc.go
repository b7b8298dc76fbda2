// Package storetest checks what every store.Store must do: a table of named properties that a
// store's own tests run.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, &storetest.Harness{
//			New: func(t testing.TB, turn time.Duration) *storetest.Subject {
//				file := filepath.Join(t.TempDir(), "dibs.db")
//				return &storetest.Subject{
//					Open: func() store.Store { return open(t, file, turn) },
//					Wipe: func() { remove(t, file) },
//				}
//			},
//			Lacks: map[storetest.Feature]string{
//				storetest.Skew: "no clock of a client's process is read anywhere",
//			},
//		})
//	}
//
// # The harness
//
// New makes a fresh, empty backend for each property. Open opens one more store on it, as
// another process would. The other functions do to the backend what can happen to it. New
// and Open end what they start with t.Cleanup, and fail the test through t. New may be
// called from several goroutines at once.
//
// Lacks declares what a backend cannot do, with the reason. A feature that is neither there
// nor declared fails the test, and so does a feature that is both. The log names the
// properties that were not checked, and why.
//
// # Time
//
// A store that lives in this process sets Virtual. Each property then runs in a
// testing/synctest bubble: days pass at once, and nothing is late.
//
// All other stores run in real time, with many properties side by side, because a property
// mostly waits. A machine may pause at any moment, for any time. A correct store still
// passes, because the kit follows four rules:
//
//   - A lease or a place that must be live lasts for half an hour or more. The property
//     shortens it in its last call before it waits for the end: it renews the lease or asks
//     for the place again. Then it checks only what has ended.
//   - A property begins to measure before the call, so that a slow call cannot make an end
//     look early.
//   - What happens by itself, such as a wake-up, may take a minute. That limit only finds
//     stores that hang.
//   - If something must be prolonged before a short time is over, the property checks that
//     it was. If the machine was too slow, the property begins again on another key with
//     twice the time. The store's answers never lead to that.
//
// store.PushedTTL is one second, which is too short for the first rule. So New gets the time
// that a pushed grant lasts. A store that pushes grants needs an option for it, which may be
// unexported. With Virtual, turn is store.PushedTTL.
//
// Short is how long a lease lasts that should expire. The backend may notice the end up to
// Late after it, never before it.
//
// # Two kinds of stores
//
// A store may push grants to waiters, or wake them to ask (see store.Notifier). A property
// accepts both. The store may skip a waiter of a process that does not listen. A store whose
// Held answers have no Fence must push no grants.
//
// # Two gates
//
// Properties that need many callers, load or luck to find a mistake are Heavy. With Virtual
// they always run. In real time they run only under the build tag nightly, one at a time,
// before the others:
//
//	go test -tags nightly ./...
//
// Random schedules log their seed, and Harness.Seed repeats them.
//
// # Trust
//
// Package internal/model is the simplest correct store, with bugs that can be switched on
// one by one. The tests of this package show that the correct store passes, and that the
// property meant for each bug finds it.
package storetest
