package riverjobs

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

// keyFunc returns a job's key from its arguments, or from their JSON if args is nil.
type keyFunc func(args rivertype.JobArgs, encoded []byte) (string, error)

// Key makes jobs with the arguments A exclude each other by the key that the function
// returns. A job whose key is "" runs at once. Jobs of several kinds exclude each other
// if their keys are equal, so begin keys with the kind of thing, such as "conversation
// 42". The function must return the same key for arguments that were stored as JSON.
//
// Call it before the River client is made. It panics if key is nil, and if m already has the
// kind, as river.AddWorker does.
func Key[A river.JobArgs](m *Mutex, key func(A) string) {
	if key == nil {
		panic("riverjobs: Key was given no function; pass the function that returns the key of a job")
	}
	register[A](m, func(args A) (string, error) { return key(args), nil })
}

// Tagged is Key for arguments whose tags describe the key, see jobs.KeyOf:
//
//	type Message struct {
//		Conversation int64 `json:"conversation" dibs:"key,conversation"`
//		Text         string `json:"text"`
//	}
//
// It also panics if there is no tag, or a wrong one.
func Tagged[A river.JobArgs](m *Mutex) {
	var zero A
	if _, err := jobs.KeyOf(&zero); err != nil {
		panic("riverjobs: Tagged: " + err.Error())
	}
	if !slices.ContainsFunc(reflect.VisibleFields(reflect.TypeFor[A]()), func(f reflect.StructField) bool {
		_, tagged := f.Tag.Lookup("dibs")
		return tagged
	}) {
		panic(fmt.Sprintf("riverjobs: Tagged: no field of %T has a tag dibs:\"key\"; tag the fields of its key, or use Key", zero))
	}
	register[A](m, func(args A) (string, error) { return jobs.KeyOf(&args) })
}

func register[A river.JobArgs](m *Mutex, key func(A) (string, error)) {
	var zero A
	kinds := []string{zero.Kind()}
	if aliased, ok := any(zero).(river.JobArgsWithKindAliases); ok {
		kinds = append(kinds, aliased.KindAliases()...)
	}
	f := func(args rivertype.JobArgs, encoded []byte) (string, error) {
		a, ok := args.(A)
		if !ok {
			if err := json.Unmarshal(encoded, &a); err != nil {
				return "", err
			}
		}
		return key(a)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, kind := range kinds {
		if _, dup := m.keys[kind]; dup {
			panic(fmt.Sprintf("riverjobs: the Mutex already has the kind %q", kind))
		}
		m.keys[kind] = f
	}
}
