package storetest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest/internal/model"
)

func TestHarnessIsValidated(t *testing.T) {
	some := func(testing.TB, time.Duration) *Subject { return nil }
	for want, h := range map[string]*Harness{
		"New is nil": {},
		"Lacks has":  {New: some, Lacks: map[Feature]string{"speed": "it is slow"}},
		"no reason":  {New: some, Lacks: map[Feature]string{Wipe: ""}},
		"Short":      {New: some, Short: time.Millisecond},
		"Late":       {New: some, Late: -1},
		"Parallel":   {New: some, Parallel: -1},
	} {
		if _, err := h.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %q", h, err, want)
		}
	}
	var none *Harness
	if _, err := none.withDefaults(); err == nil {
		t.Error("a nil harness is accepted")
	}
	h, err := (&Harness{New: some}).withDefaults()
	if err != nil || h.Short != 200*time.Millisecond || h.Late != 100*time.Millisecond {
		t.Errorf("the defaults are %+v, %v", h, err)
	}
}

// bare hides what the model implements besides store.Store.
type bare struct{ store.Store }

func TestFeaturesAreDeclared(t *testing.T) {
	s := model.New(model.None, store.PushedTTL).Open()
	nothing := func() {}
	everything := &Subject{OpenSkewed: func(time.Duration) store.Store { return s }, Restart: nothing, Wipe: nothing}
	all := map[Feature]string{}
	for _, f := range features {
		all[f] = "a reason"
	}
	for name, test := range map[string]struct {
		subject  *Subject
		store    store.Store
		lacks    map[Feature]string
		complain []Feature
	}{
		"everything there":             {everything, s, nil, nil},
		"nothing there, all declared":  {&Subject{}, bare{s}, all, nil},
		"nothing there, none declared": {&Subject{}, bare{s}, nil, []Feature{Skew, Restart, Wipe, Inspector, Notifier, Pruner}},
		"everything there, but denied": {everything, s, all, []Feature{Skew, Restart, Wipe, Inspector, Notifier, Pruner}},
	} {
		r := newRecorder(t)
		(&Harness{Lacks: test.lacks}).declare(r, test.subject, test.store)
		if len(r.lines()) != len(test.complain) || r.Failed() != (len(test.complain) > 0) {
			t.Errorf("%s: %q, want complaints about %q", name, r.lines(), test.complain)
			continue
		}
		for i, f := range test.complain {
			if !strings.Contains(r.lines()[i], string(f)) {
				t.Errorf("%s: %q, want a complaint about %q", name, r.lines()[i], f)
			}
		}
	}
}

// A property that needs what a backend lacks is named, and not run.
func TestMissingFeatureIsNamed(t *testing.T) {
	h, err := (&Harness{New: func(testing.TB, time.Duration) *Subject { return nil },
		Lacks: map[Feature]string{Wipe: "it cannot forget"}}).withDefaults()
	testkit.Must(t, err)
	for _, test := range []struct {
		needs []Feature
		want  Feature
	}{
		{nil, ""},
		{[]Feature{Restart}, ""},
		{[]Feature{Restart, Wipe}, Wipe},
		{[]Feature{days}, days},
	} {
		if f, why := h.missing(Property{Needs: test.needs}); f != test.want || (why == "") != (f == "") {
			t.Errorf("needs %q: lacks %q because %q, want %q", test.needs, f, why, test.want)
		}
	}
}

// What a trial reports stays with the trial, however it ends.
func TestRecorderKeepsFailures(t *testing.T) {
	h, err := modelHarness(model.None, true).withDefaults()
	testkit.Must(t, err)
	for name, test := range map[string]struct {
		check func(*Trial)
		fails bool
		says  string
	}{
		"passing":  {func(t *Trial) { t.Log("so far so good") }, false, "so far so good"},
		"an error": {func(t *Trial) { t.Errorf("wrong %d", 1); t.Log("after it") }, true, "after it"},
		"fatal":    {func(t *Trial) { t.Fatal("wrong"); t.Log("after it") }, true, "wrong"},
		"skipping": {func(t *Trial) { t.SkipNow() }, true, "skipped"},
		"a failed call": {func(t *Trial) {
			p := t.process()
			p.store.(*model.Store).Break()
			p.try(key("k"), store.NewToken())
		}, true, "broken"},
	} {
		r := try(t, h, Property{Name: name, Check: test.check})
		lines := strings.Join(r.lines(), "\n")
		if r.Failed() != test.fails || !strings.Contains(lines, test.says) {
			t.Errorf("%s: failed %v with %q, want %v and %q", name, r.Failed(), lines, test.fails, test.says)
		}
		if test.says != "after it" && strings.Contains(lines, "after it") {
			t.Errorf("%s: went on after the end: %q", name, lines)
		}
		if !strings.Contains(lines, "kit_test.go:") {
			t.Errorf("%s: %q does not say where", name, lines)
		}
	}
}

// Something that is over too early, and something that is over too late, is
// noticed to the millisecond or two.
func TestEnds(t *testing.T) {
	h, err := modelHarness(model.None, true).withDefaults()
	testkit.Must(t, err)
	const d = 200 * time.Millisecond
	for lasts, fails := range map[time.Duration]bool{
		0: true, d / 2: true, d - 11*time.Millisecond: true,
		d: false, d + 10*time.Millisecond: false,
		d + 12*time.Millisecond: true, 10 * d: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRecorder(t)
			trial := &Trial{TB: r, h: h}
			done := make(chan struct{})
			go func() {
				defer close(done)
				start := time.Now()
				trial.ends("it", start, start, d, func() bool { return time.Since(start) >= lasts })
			}()
			<-done
			if r.Failed() != fails {
				t.Errorf("what lasts %v and was to last %v: failed is %v: %q", lasts, d, r.Failed(), r.lines())
			}
		})
	}
}
