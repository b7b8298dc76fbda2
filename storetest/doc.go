// Package storetest is what every dibs.Store must do, as a table of named
// properties that a store's own tests run:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, &storetest.Harness{
//			New: func(t testing.TB, turn time.Duration) *storetest.Backend {
//				file := filepath.Join(t.TempDir(), "dibs.db")
//				return &storetest.Backend{
//					Open: func() dibs.Store { return open(t, file, turn) },
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
// New makes a fresh, empty backend for each property. Open opens one more store on
// it, as another process would; the other functions are what can be done to a backend
// from outside. New and Open end what they start with t.Cleanup and fail the test
// through t themselves. New may be called from several goroutines at once.
//
// What a backend cannot do it declares in Lacks, with the reason. Nothing is left out
// in silence: a feature that is neither there nor declared fails the test, as does one
// that is both. The log names the properties that were not checked, and says why.
//
// # Time
//
// A store that lives in this process sets Virtual. Each property then runs in a
// testing/synctest bubble: days pass in no time, and nothing is late.
//
// All other stores run in real time, and many properties side by side, because a
// property mostly waits. A machine may stand still at any moment, for any time. The
// kit passes a correct store there too, because it follows four rules:
//
//   - A lease or a place that must be alive lasts for half an hour or more.
//     The property shortens it in its last call before it waits for the end: it renews
//     the lease, or asks for the place again. Then it checks only what is over.
//   - A property begins to measure before the call, so that a slow call cannot make
//     an end look early.
//   - What happens by itself, such as a wake-up, may take a minute. That limit says
//     that the store hangs, and nothing else.
//   - If something must be prolonged before a short time is over, the property checks
//     that it was. If the machine was too slow for that, the property begins again on
//     another key, with twice the time. The store's answers never lead to that.
//
// dibs.PushedTTL is one second, which is too short for the first rule. So New is told how
// long a grant lasts that the stores of a backend tell. Such a store needs a way to
// set that for its own tests; it may be unexported. With Virtual, turn is dibs.PushedTTL.
//
// Short is how long something lasts that runs out. The backend may notice the end up
// to Late after it, never before it.
//
// # Two kinds of stores
//
// A store may tell a waiter its grant, or wake it to ask (see dibs.Notifier). A property
// takes either for right, and a waiter of a process that nobody listens in may be passed
// over. A store whose Held answers have no Fence must tell no grants.
//
// # Two gates
//
// Properties that need crowds, load or luck to find a mistake are Heavy. With Virtual
// they always run. In real time they run only under the build tag nightly:
//
//	go test -tags nightly ./...
//
// They run one at a time there, before the others. Random schedules log their seed;
// Harness.Seed repeats them.
//
// # Trust
//
// A kit that passes everything is worth nothing. Package internal/model is the
// simplest correct store there can be, with bugs that can be switched on one by one.
// The tests of this package show that the correct one passes, and that each bug is
// caught by the property that is meant to catch it.
package storetest
