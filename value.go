package dibs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// marshal writes a result as JSON. A panic of the result's own methods is an error, because the
// caller's function has had its effect.
func marshal(result any) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("to write %T as JSON panicked: %v", result, p)
		}
	}()
	return json.Marshal(result)
}

// unmarshal reads a result. It returns an error if the result was written as a type that T did not
// come from, by the rule in the comment of Once. encoding/json alone would leave the fields out
// that it does not find.
func unmarshal[T any](data []byte) (result T, err error) {
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	all := strict.Decode(&result) == nil // T has all fields that are stored
	if !all {
		var again T
		if err := json.Unmarshal(data, &again); err != nil {
			return result, err
		}
		result = again
	}
	if c := data[0]; c != '{' && c != '[' && c != 'n' {
		return result, nil // because a text, number or bool that does not fit is an error above
	}
	rewritten, err := marshal(result)
	if err == nil {
		err = fits(tree(data), tree(rewritten), all)
	}
	if err != nil {
		var none T
		return none, err
	}
	return result, nil
}

// tree reads JSON that was read before.
func tree(data []byte) (value any) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	_ = d.Decode(&value)
	return value
}

// fits compares what is stored with what was read of it. all says that no stored field was left
// out.
func fits(stored, read any, all bool) error {
	if stored == nil && read != nil {
		return errors.New("a null was stored where it has a value")
	}
	switch was := stored.(type) {
	case []any:
		is, ok := read.([]any)
		if !ok {
			return nil // the type's own method has written something else
		}
		if len(was) != len(is) {
			return fmt.Errorf("an array of %d was stored where it has one of %d", len(was), len(is))
		}
		for i := range was {
			if err := fits(was[i], is[i], all); err != nil {
				return err
			}
		}
	case map[string]any:
		if is, ok := read.(map[string]any); ok {
			return fieldsFit(was, is, all)
		}
	}
	return nil
}

// fieldsFit compares objects.
func fieldsFit(stored, read map[string]any, all bool) error {
	common := 0
	for name, value := range read {
		was, ok := field(stored, name)
		switch {
		case ok:
			common++
			if err := fits(was, value, all); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		case !all:
			return fmt.Errorf("it was stored as another type, without the field %s and with fields that this type does not have", name)
		}
	}
	if common == 0 && (len(stored) > 0) != (len(read) > 0) && !(all && len(stored) > 0) {
		return errors.New("it was stored as another type, with no field in common")
	}
	return nil
}

// field returns a field as encoding/json finds it, which ignores case.
func field(object map[string]any, name string) (any, bool) {
	if value, ok := object[name]; ok {
		return value, true
	}
	for other, value := range object {
		if strings.EqualFold(other, name) {
			return value, true
		}
	}
	return nil, false
}
