package simulator

import (
	"fmt"
	"strings"
	"time"
)

// Via is how devices report: a kind, or several with commas between, which are
// dealt over the devices in turn.
type Via string

// The kinds of devices.
const (
	ViaHTTP     Via = "http"      // polls, and comes when it was told to
	ViaMQTT     Via = "mqtt"      // comes when it was told to, and at once when it is woken
	ViaLongPoll Via = "long-poll" // its requests are held until there is work
	ViaPeriodic Via = "periodic"  // polls over HTTP once in each period, whatever it was told
	ViaMixed    Via = "mixed"     // "http,mqtt"
)

// longPollWait is how long a device asks to be held.
const longPollWait = 25 * time.Second

// Check says whether it names kinds of devices.
func (v Via) Check() error {
	for _, kind := range v.kinds() {
		switch kind {
		case ViaHTTP, ViaMQTT, ViaLongPoll, ViaPeriodic:
		default:
			return fmt.Errorf("via: %q is none of http, mqtt, long-poll, periodic, mixed", kind)
		}
	}
	return nil
}

func (v Via) kinds() []Via {
	if v == ViaMixed {
		return []Via{ViaHTTP, ViaMQTT}
	}
	var kinds []Via
	for kind := range strings.SplitSeq(string(v), ",") {
		kinds = append(kinds, Via(strings.TrimSpace(kind)))
	}
	return kinds
}

// of is the kind of the i-th device.
func (v Via) of(i int) Via {
	kinds := v.kinds()
	return kinds[i%len(kinds)]
}

// uses tells which of the two transports the kinds need.
func (v Via) uses() (http, mqtt bool) {
	for _, kind := range v.kinds() {
		http = http || kind != ViaMQTT
		mqtt = mqtt || kind == ViaMQTT
	}
	return http, mqtt
}
