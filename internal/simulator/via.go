package simulator

import (
	"fmt"
	"strings"
	"time"
)

// Via selects how devices report: a kind of device, or several kinds separated by commas. Several kinds are assigned
// to the devices in turn.
type Via string

// The kinds of devices.
const (
	ViaHTTP     Via = "http"      // polls, and reports when the server asked it to
	ViaMQTT     Via = "mqtt"      // reports when the server asked it to, and at once when it is woken
	ViaLongPoll Via = "long-poll" // its requests are held until there is work
	ViaPeriodic Via = "periodic"  // polls over HTTP once in each period, whatever time the server asks for
	ViaMixed    Via = "mixed"     // the same as "http,mqtt"
)

// longPollWait is the time for which a long-poll device asks the server to hold its request.
const longPollWait = 25 * time.Second

// Check returns an error if v names an unknown kind of device.
func (v Via) Check() error {
	for _, kind := range v.kinds() {
		switch kind {
		case ViaHTTP, ViaMQTT, ViaLongPoll, ViaPeriodic:
		default:
			return fmt.Errorf("via: %q is not one of http, mqtt, long-poll, periodic; mixed must stand alone", kind)
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

func (v Via) transportOfDevice(index int) Via {
	kinds := v.kinds()
	return kinds[index%len(kinds)]
}

func (v Via) needsTransports() (http, mqtt bool) {
	for _, kind := range v.kinds() {
		http = http || kind != ViaMQTT
		mqtt = mqtt || kind == ViaMQTT
	}
	return http, mqtt
}
