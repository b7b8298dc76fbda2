package casstore_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore"
)

// kv is a KV with other methods than its own.
type kv struct {
	casstore.KV
	get func(ctx context.Context, name string) ([]byte, string, error)
	put func(ctx context.Context, name string, value []byte, version string) (string, error)
	del func(ctx context.Context, name, version string) error
}

func (k *kv) Get(ctx context.Context, name string) ([]byte, string, error) {
	if k.get == nil {
		return k.KV.Get(ctx, name)
	}
	return k.get(ctx, name)
}

func (k *kv) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	if k.put == nil {
		return k.KV.Put(ctx, name, value, version)
	}
	return k.put(ctx, name, value, version)
}

func (k *kv) Delete(ctx context.Context, name, version string) error {
	if k.del == nil {
		return k.KV.Delete(ctx, name, version)
	}
	return k.del(ctx, name, version)
}

// counted is a KV that counts the versions of each object, in its first byte.
type counted struct{ *casstore.Memory }

func (k counted) Get(ctx context.Context, name string) ([]byte, string, error) {
	raw, version, err := k.Memory.Get(ctx, name)
	if err != nil || version == "" {
		return nil, "", err
	}
	return raw[1:], strconv.Itoa(int(raw[0])), nil
}

func (k counted) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	old, now, err := k.Memory.Get(ctx, name)
	if err != nil {
		return "", err
	}
	n := byte(0)
	if now != "" {
		n = old[0]
	}
	if (version == "") != (now == "") || version != "" && version != strconv.Itoa(int(n)) {
		return "", casstore.ErrConflict
	}
	_, err = k.Memory.Put(ctx, name, append([]byte{n + 1}, value...), now)
	return strconv.Itoa(int(n) + 1), err
}

func (k counted) Delete(ctx context.Context, name, version string) error {
	old, now, err := k.Memory.Get(ctx, name)
	if err != nil {
		return err
	}
	if now == "" || version != strconv.Itoa(int(old[0])) {
		return casstore.ErrConflict
	}
	return k.Memory.Delete(ctx, name, now)
}

// TestOpenRefusesEnginesThatIgnoreConditions: of each condition that a KV promises.
func TestOpenRefusesEnginesThatIgnoreConditions(t *testing.T) {
	m := &casstore.Memory{}
	var one sync.Mutex
	force := func(ctx context.Context, name string, value []byte) (string, error) {
		one.Lock()
		defer one.Unlock()
		_, version, err := m.Get(ctx, name)
		if err != nil {
			return "", err
		}
		return m.Put(ctx, name, value, version)
	}
	put := func(ignores func(there bool, version string) bool) *kv {
		return &kv{KV: m, put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
			_, now, err := m.Get(ctx, name)
			testkit.Check(t, err)
			if ignores(now != "", version) {
				return force(ctx, name, value)
			}
			return m.Put(ctx, name, value, version)
		}}
	}
	var together sync.WaitGroup
	together.Add(4) // the writers that Open has meet
	for what, k := range map[string]casstore.KV{
		"makes an object that is there":       put(func(_ bool, version string) bool { return version == "" }),
		"replaces an object that has changed": put(func(there bool, version string) bool { return version != "" && there }),
		"replaces an object that is gone":     put(func(there bool, version string) bool { return version != "" && !there }),
		"looks at the condition before it writes": &kv{KV: m, put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
			if _, now, _ := m.Get(ctx, name); now != version {
				return "", casstore.ErrConflict
			}
			together.Done()
			together.Wait() // all have looked
			return force(ctx, name, value)
		}},
		"does not delete": &kv{KV: m, del: func(ctx context.Context, name, version string) error {
			if _, now, _ := m.Get(ctx, name); now != version {
				return casstore.ErrConflict
			}
			return nil
		}},
		"makes no object where one was deleted": func() casstore.KV {
			var deleted sync.Map
			return &kv{
				KV: m,
				put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
					if _, was := deleted.Load(name); was && version == "" {
						return "", casstore.ErrConflict
					}
					return m.Put(ctx, name, value, version)
				},
				del: func(ctx context.Context, name, version string) error {
					err := m.Delete(ctx, name, version)
					if err == nil {
						deleted.Store(name, true)
					}
					return err
				},
			}
		}(),
		"counts the versions of an object from one again": counted{m},
		"has one version for all states": &kv{
			KV: m,
			get: func(ctx context.Context, name string) ([]byte, string, error) {
				raw, version, err := m.Get(ctx, name)
				if version != "" {
					version = "1"
				}
				return raw, version, err
			},
			put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
				_, now, _ := m.Get(ctx, name)
				if (now == "") != (version == "") {
					return "", casstore.ErrConflict
				}
				_, err := m.Put(ctx, name, value, now)
				return "1", err
			},
		},
		"reads what was there before": &kv{KV: m, get: func() func(ctx context.Context, name string) ([]byte, string, error) {
			old := &casstore.Memory{}
			return func(ctx context.Context, name string) ([]byte, string, error) {
				raw, _, err := m.Get(ctx, name)
				testkit.Check(t, err)
				was, version, err := old.Get(ctx, name)
				testkit.Check(t, err)
				_, err = old.Put(ctx, name, raw, version)
				return was, version, err
			}
		}()},
	} {
		s, err := casstore.Open(t.Context(), k, nil)
		if strings.HasPrefix(what, "looks") && err != nil && !strings.Contains(err.Error(), "more than one") {
			t.Errorf("an engine that %s: %v", what, err)
		}
		if !errors.Is(err, casstore.ErrUnconditional) {
			t.Errorf("an engine that %s: %v, want ErrUnconditional", what, err)
			if err == nil {
				testkit.Check(t, s.Close())
			}
		}
	}
	s, err := casstore.Open(t.Context(), m, nil)
	testkit.Must(t, err)
	testkit.Check(t, s.Close())
}

// TestEngineThatDeletesUnconditionally: the store deletes no object of a key there, and Check says so.
func TestEngineThatDeletesUnconditionally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &casstore.Memory{}
		k := &kv{KV: m, del: func(ctx context.Context, name, _ string) error {
			_, version, err := m.Get(ctx, name)
			testkit.Check(t, err)
			return m.Delete(ctx, name, version)
		}}
		s, token := open(t, k, nil), store.NewToken()
		claim(t, s, token, store.Try, time.Hour)
		testkit.Check(t, settle(t, s, store.Settlement{Token: token}))
		for range 12 {
			time.Sleep(10 * time.Minute)
			claim(t, s, token, store.Look, time.Hour)
			_, err := s.Prune(t.Context(), 0)
			testkit.Check(t, err)
		}
		if n := keys(t, m); n != 1 {
			t.Errorf("%d objects of keys are left, want the one", n)
		}
		found, err := s.Check(t.Context())
		testkit.Check(t, err)
		if !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Name == "deletes" }) {
			t.Errorf("Check finds %+v, want the deletes", found)
		}
	})
}

// TestReadOnly: a store that is only looked into is not written, and its keys are there.
func TestReadOnly(t *testing.T) {
	m := &casstore.Memory{}
	refuse := &kv{KV: m, put: func(context.Context, string, []byte, string) (string, error) {
		t.Error("a store that is only read is written")
		return "", casstore.ErrConflict
	}}
	for _, want := range []int{0, 1} {
		s := open(t, refuse, &casstore.Options{ReadOnly: true})
		n := 0
		for e, err := range s.List(t.Context(), store.Query{}) {
			testkit.Check(t, err)
			if n++; e.Condition != store.ConditionHeld {
				t.Errorf("the key is %q, want held", e.Condition)
			}
		}
		if n != want {
			t.Errorf("%d keys are listed, want %d", n, want)
		}
		claim(t, open(t, m, nil), store.NewToken(), store.Try, time.Hour)
	}
}

// TestNames: names are in the order of keys, and no object is in the way of another one in an engine
// whose folders and files have one name each.
func TestNames(t *testing.T) {
	m := &casstore.Memory{}
	s := open(t, m, nil)
	var want []string
	for _, c := range []string{"\x00", "a", "\xff"} {
		for _, n := range []int{1, 2, 148, 149, 150, 151, 299, 300, 301, 449, 450, 512} {
			want = append(want, strings.Repeat(c, n), strings.Repeat(c, n-1)+"~")
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	for _, k := range want {
		a := make([]store.Answer, 1)
		testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: store.Key{Name: k}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}}, a))
	}
	var got []string
	for e, err := range s.List(t.Context(), store.Query{}) {
		testkit.Check(t, err)
		got = append(got, e.Key.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the keys are %q, want %q", got, want)
	}
	names, err := m.List(t.Context(), "k/", "", 1000)
	testkit.Check(t, err)
	for _, name := range names {
		if len(name) > 800 || slices.ContainsFunc(strings.Split(name, "/"), func(s string) bool { return len(s) > 201 }) ||
			slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, name+"/") }) {
			t.Errorf("the name %q is too long, or has another one in its folder", name)
		}
	}
}

// TestOpenNamesTheWrongOption: each is refused by its name.
func TestOpenNamesTheWrongOption(t *testing.T) {
	for want, o := range map[string]*casstore.Options{
		"Tick":       {Tick: 1},
		"MaxWaiters": {MaxWaiters: -1},
		"MaxObject":  {MaxObject: -1},
		"PruneEvery": {PruneEvery: 1},
	} {
		_, err := casstore.Open(t.Context(), &casstore.Memory{}, o)
		if err == nil || !strings.Contains(err.Error(), "Options."+want+" ") {
			t.Errorf("%v, want an error about Options.%s", err, want)
		}
	}
}
