package proxy

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/internal/suggest"
)

// setting is a field of Config, Route or Policy.
type setting struct {
	name    string
	section string
	tag     reflect.StructTag
	field   reflect.Value
}

// settingsOf returns the settings of a struct and of what it embeds.
func settingsOf(of any) (all []setting) {
	section := ""
	for f, v := range reflect.ValueOf(of).Elem().Fields() {
		if f.Anonymous {
			all = append(all, settingsOf(v.Addr().Interface())...)
		} else if f.Tag.Get("help") != "" {
			if title := f.Tag.Get("section"); title != "" {
				section = title
			}
			all = append(all, setting{settingOf(f.Name), section, f.Tag, v})
		}
	}
	return all
}

var wordsOfName = regexp.MustCompile("TLS|CORS|MCP|[A-Z][a-z]*")

// renamed are fields of idempotency.Options whose settings have another name.
var renamed = map[string]string{"WriteProblem": "errors", "MCP": "for"}

// settingOf returns the name of the setting for a field, here or in idempotency.Options.
func settingOf(field string) string {
	if name, ok := renamed[field]; ok {
		return name
	}
	return strings.ToLower(strings.Join(wordsOfName.FindAllString(strings.TrimPrefix(field, "MCP."), -1), "-"))
}

// variable returns the name of the setting's environment variable. It does not begin with
// DIBS_ alone, because dibs run sets DIBS_KEY and DIBS_NAMESPACE for its command, which may be
// a proxy. DIBS_STORE is for all commands.
func (s setting) variable() string {
	if s.name == "store" {
		return "DIBS_STORE"
	}
	return "DIBS_PROXY_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// Variable returns the environment variable of the setting with a name; "" if there is none.
func Variable(name string) string {
	for _, s := range settingsOf(new(Config)) {
		if s.name == name {
			return s.variable()
		}
	}
	return ""
}

// words returns the words of which the value is one; nil if it accepts others.
func (s setting) words() []string {
	switch words := s.tag.Get("words"); words {
	case "":
		return nil
	case "presets":
		return presets
	case "errors":
		return errorShapes
	default:
		return strings.Split(words, ",")
	}
}

// text returns the value as it is written.
func (s setting) text() string {
	switch v := s.field.Interface().(type) {
	case time.Duration:
		return quantity.DurationText(v)
	case int64:
		return quantity.SizeText(v)
	case []string:
		return strings.Join(v, ",")
	}
	return fmt.Sprint(s.field)
}

// public reports whether the value can hold no secret: it is a number, a switch, or one of some words.
func (s setting) public() bool {
	return s.words() != nil || s.field.Kind() != reflect.String && s.field.Kind() != reflect.Slice
}

// set sets the field from its text. An empty text is refused unless it overrides another one, because it
// is mostly a variable of the shell or of a template that is not set, and an empty key-ring would store
// answers in plain text.
func (s setting) set(text string) (err error) {
	if text == "" && s.text() == "" {
		return errors.New("it is empty; leave it out for the default")
	}
	switch p := s.field.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	case *bool:
		if !slices.Contains([]string{"true", "on", "false", "off"}, text) {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		*p = text == "true" || text == "on"
	case *int:
		if *p, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
	case *int64:
		*p, err = quantity.Size(text)
	case *time.Duration:
		if *p, err = quantity.Duration(text); *p < 0 {
			return fmt.Errorf("%s is negative", text)
		}
	case *[]string:
		elements := strings.Split(text, ",")
		for i := range elements {
			if elements[i] = strings.TrimSpace(elements[i]); elements[i] == "" {
				return fmt.Errorf("%q has an empty element", text)
			}
		}
		return s.setList(elements)
	default:
		if words := s.words(); words != nil && !slices.Contains(words, text) {
			return suggest.NoneOf(text, words...)
		}
		if err = s.check(text); err == nil {
			s.field.SetString(text)
		}
	}
	return err
}

// setList sets a list from its elements.
func (s setting) setList(elements []string) error {
	if s.field.Kind() != reflect.Slice {
		return errors.New("it must be one value, not a sequence")
	}
	for _, element := range elements {
		if err := s.check(element); err != nil {
			return err
		}
	}
	s.field.Set(reflect.ValueOf(elements))
	return nil
}

// check refuses a value, or an element of a list, that does not pass the check of the setting.
func (s setting) check(text string) error {
	if check := checks[s.tag.Get("check")]; check != nil {
		return check(text)
	}
	return nil
}

// The annotations of flags.
const (
	sectionOf = "dibs_section"
	wordsOf   = "dibs_words"
)

// Sections are the titles under which help shows the flags of a proxy, in this order.
var Sections = func() (titles []string) {
	for _, s := range settingsOf(new(Config)) {
		titles = append(titles, s.section)
	}
	return slices.Compact(titles)
}()

// Section returns the title under which help shows a flag; "" if it is not a setting.
func Section(f *pflag.Flag) string { return strings.Join(f.Annotations[sectionOf], "") }

// Words returns the words of which a flag is one; nil if it accepts others.
func Words(f *pflag.Flag) []string { return f.Annotations[wordsOf] }

// Bind makes the settings that are flags those of fs, with their defaults. It leaves out flags that fs
// has already, because other commands have --store and --namespace too.
func Bind(fs *pflag.FlagSet) {
	c := defaults()
	for _, s := range settingsOf(&c) {
		if s.tag.Get("flag") == "" {
			continue
		}
		f := fs.Lookup(s.name)
		if f == nil {
			arg := s.tag.Get("arg")
			f = fs.VarPF(flagValue{s}, s.name, "", strings.Replace(s.tag.Get("help"), arg, "`"+arg+"`", min(len(arg), 1)))
			if s.field.Kind() == reflect.Bool {
				f.NoOptDefVal = "true"
			}
		}
		f.Annotations = map[string][]string{sectionOf: {s.section}}
		if words := s.words(); words != nil {
			f.Annotations[wordsOf] = words
		}
	}
}

// flagValue is the value of a flag.
type flagValue struct{ setting }

// Set sets the value.
func (v flagValue) Set(text string) error { return v.set(text) }

// String returns the value's text; "" for what is off by default.
func (v flagValue) String() string {
	if !v.field.IsValid() {
		return ""
	}
	return v.text()
}

// Type returns the word that help shows for a flag without an arg.
func (v flagValue) Type() string {
	switch v.field.Interface().(type) {
	case time.Duration:
		return "duration"
	case bool:
		return "bool"
	case int64:
		return "size"
	}
	return "string"
}

// Report returns a line for each setting that is not the default, for a report that anybody may
// read: "lease: 30s". What could hold a secret, such as a URL or a name, is only said to be set.
func (c *Config) Report() (lines []string) {
	d := defaults()
	usual := settingsOf(&d)
	for i, s := range settingsOf(c) {
		switch text := s.text(); {
		case text == usual[i].text():
		case s.public():
			lines = append(lines, s.name+": "+text)
		default:
			lines = append(lines, s.name+": (set)")
		}
	}
	if len(c.Routes) > 0 {
		lines = append(lines, "routes: "+strconv.Itoa(len(c.Routes)))
	}
	return lines
}
