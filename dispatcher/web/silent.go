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
func (d *devicePages) silentPage(r *http.Request) (page, error) {
	filter, err := silentFilter(r.URL.Query())
	if err != nil {
		return page{}, err
	}
	found, err := d.ledger.Silent(r.Context(), filter, d.silence(), devicesShown+1)
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
	list := make([]operators.Device, len(found.Devices))
	for i, one := range found.Devices {
		list[i] = operators.Device{ID: one.ID, Blocked: one.Blocked, Tags: one.Tags, Created: operators.Time{Time: one.CreatedAt}}
		if one.LastSeen != nil {
			list[i].LastSeen = &operators.Time{Time: *one.LastSeen}
		}
	}
	pager := pagerOf(r, filtersOf(r.URL.Query(), "show", "prefix", "tag", "blocked"))
	return d.listed(list, pager.filters, map[string]any{
		"Next": pager.next(last), "First": pager.first(), "Show": "silent", "Looked": found.Looked, "More": more,
	}), nil
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
