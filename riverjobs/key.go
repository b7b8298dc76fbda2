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

// keyFunc returns the key of a job by its arguments, or by those as they are stored when the
// worker's side has nothing else.
type keyFunc func(args rivertype.JobArgs, encoded []byte) (string, error)

// Key tells m to let the jobs with the arguments A take turns by the key that the function returns;
// a job whose key is "" just runs. Jobs of several kinds exclude each other where their functions
// return the same: begin keys with what they name, such as "conversation 42". The function has to
// return the same for the arguments that River has stored as JSON.
//
// Call it before the River client is made. It panics when m has the kind already, as
// river.AddWorker does.
func Key[A river.JobArgs](m *Mutex, key func(A) string) {
	register[A](m, func(args A) (string, error) { return key(args), nil })
}

// Tagged is Key for arguments that say by tags what their key is, see jobs.KeyOf:
//
//	type Message struct {
//		Conversation int64 `json:"conversation" dibs:"key,conversation"`
//		Text         string `json:"text"`
//	}
//
// It panics also when there is no tag, or a wrong one.
func Tagged[A river.JobArgs](m *Mutex) {
	var zero A
	if _, err := jobs.KeyOf(&zero); err != nil {
		panic("riverjobs: Tagged: " + err.Error())
	}
	if !slices.ContainsFunc(reflect.VisibleFields(reflect.TypeFor[A]()), func(f reflect.StructField) bool {
		_, tagged := f.Tag.Lookup("dibs")
		return tagged
	}) {
		panic(fmt.Sprintf("riverjobs: Tagged: no field of %T has a tag dibs:\"key\": tag those that make its key, or use Key", zero))
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
			panic(fmt.Sprintf("riverjobs: the Mutex has the kind %q already", kind))
		}
		m.keys[kind] = f
	}
}
