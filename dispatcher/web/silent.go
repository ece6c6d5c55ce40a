package web

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// silentPage shows which of the next silentLooked devices are silent.
func (w *Web) silentPage(r *http.Request) (page, error) {
	q := r.URL.Query()
	filter, err := silentFilter(q)
	if err != nil {
		return page{}, err
	}
	found, err := w.options.Ledger.Silent(r.Context(), filter, w.silence(), devicesShown+1)
	if err != nil {
		return page{}, err
	}
	last := ""
	if found.Looked == silentLooked {
		last = found.Last
	}
	more := len(found.Devices) > devicesShown
	if more {
		found.Devices = found.Devices[:devicesShown]
		last = found.Devices[devicesShown-1].ID
	}
	next := ""
	if last != "" {
		onwards := url.Values{"show": {"silent"}, "page": {last}}
		for _, name := range []string{"prefix", "tag", "blocked"} {
			if q.Get(name) != "" {
				onwards.Set(name, q.Get(name))
			}
		}
		next = "/devices?" + onwards.Encode()
	}
	list := make([]operators.Device, len(found.Devices))
	for i, d := range found.Devices {
		list[i] = operators.Device{ID: d.ID, Blocked: d.Blocked, Tags: d.Tags, Created: operators.Time{Time: d.CreatedAt}}
		if d.LastSeen != nil {
			list[i].LastSeen = &operators.Time{Time: *d.LastSeen}
		}
	}
	return page{title: "Devices", section: "devices", template: "devices", data: map[string]any{
		"Devices": list, "Next": next, "First": filter.After == "", "Show": "silent", "Looked": found.Looked, "More": more, "Silent": w.silence(),
		"Prefix": q.Get("prefix"), "Tag": q.Get("tag"), "Blocked": q.Get("blocked"),
	}}, nil
}

// silentFilter reads the filters as the API reads those of its list.
func silentFilter(q url.Values) (store.DeviceFilter, error) {
	f := store.DeviceFilter{Limit: silentLooked, After: q.Get("page"), Prefix: q.Get("prefix")}
	for _, id := range []string{f.After, f.Prefix} {
		if id == "" {
			continue
		}
		if _, err := devices.ParseID(id); err != nil {
			return f, badForm("Id begins with: a letter or digit, then A-Z a-z 0-9 . _ : -, up to 128.")
		}
	}
	if tag := q.Get("tag"); tag != "" {
		name, value, ok := strings.Cut(tag, ":")
		if !ok || strings.ContainsRune(tag, 0) {
			return f, badForm("Tag: name:value.")
		}
		f.Tags = map[string]string{name: value}
	}
	if blocked := q.Get("blocked"); blocked != "" {
		yes := blocked == "true"
		f.Blocked = &yes
	}
	return f, nil
}
