package proxy

import "strconv"

// Report returns a line for each setting that is not the default, for a report that anybody may
// read: "lease: 30s". What could hold a secret, such as a URL or a name, is only said to be set.
func (c *Config) Report() (lines []string) {
	d := defaults()
	usual := d.settings()
	for i, s := range c.settings() {
		switch text := s.value.String(); {
		case text == usual[i].value.String():
		case s.value.public:
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
