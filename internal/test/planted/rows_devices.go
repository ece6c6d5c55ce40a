package main

// devicesMistakes returns the planted mistakes in the transports of devices, and in the simulator that checks the
// dispatcher.
func devicesMistakes() []Mistake {
	return []Mistake{
		{
			Package: "devices", Func: "decodeList",
			Old:    `entryMembers, _ := parseMembers(entry)`,
			New:    `entryMembers, ok := parseMembers(entry); if !ok { return nil, invalidFieldError(name, "must be an array of objects") }`,
			Breaks: "one bad entry of a report refuses its good entries, too",
		},
		{
			Package: "devices", Func: "nextEscape",
			Old:    `case unit == 0: return escape, true`,
			New:    `case unit == 0: return escape, false`,
			Breaks: "an escaped U+0000 in a device's text reaches the ledger",
		},
		{
			Package: "devices/hawkbit", Func: "exchange.addLinks",
			Old:    `renewed, stop, err := x.renewGrant(newest, 0)`,
			New:    `renewed, stop, err := reply, "", error(nil)`,
			Breaks: "a poll over DDI does not renew the lease of the device, and gets the link of a grant that may have ended",
			Tests:  []string{"internal/app"},
		},
		{
			Package: "devices/hawkbit", Func: "exchange.postFeedback",
			Old:    `case newest.ID != x.action || x.action == 0:`,
			New:    `case x.action == 0:`,
			Breaks: "feedback to an earlier action over DDI ends the newest grant",
			Tests:  []string{"internal/app"},
		},
		{
			Package: "devices/hawkbit", Func: "exchange.postFeedback",
			Old:    `slices.Contains(got.Status.Details, skipped)`,
			New:    `slices.Contains(got.Status.Details, "not "+skipped)`,
			Breaks: "an update that swupdate skipped counts as installed",
			Tests:  []string{"internal/app"},
		},
		{
			Package: "devices/hawkbit", Func: "exchange.reportEnd",
			Old:    `if outcome == devices.OutcomeRecorded`,
			New:    `if outcome != ""`,
			Breaks: "a result over DDI that came after the end of its grant is answered as if it were the first",
			Tests:  []string{"internal/app"},
		},
		{
			Package: "devices/http", Func: "Reports.answerReport",
			Old:    `min(PreferredWait(request.Header), h.LongPollMax)`,
			New:    `PreferredWait(request.Header)`,
			Breaks: "a report is parked for longer than the server's limit",
			Tests:  []string{"devices/http", "operators/api", "internal/app"},
		},
		{
			Package: "devices/http", Func: "Reports.answerReport",
			Old:    `leave() extendWriteDeadline(response, wait)`,
			New:    `extendWriteDeadline(response, wait)`,
			Breaks: "parked reports use up the places of the reports that are answered at once",
			Tests:  []string{"devices/http", "operators/api", "internal/app"},
		},
		{
			Package: "devices/http", Func: "bodyLimiter.readBody",
			Old:    `err == nil || errors.As`,
			New:    `err == nil || len(body) > 0 || errors.As`,
			Breaks: "a body that broke off is refused as invalid JSON, so the device never sends its results again",
			Tests:  []string{"devices/http", "operators/api"},
		},
		{
			Package: "devices/mqtt", Func: "intake.handle",
			Old:    `reply := in.answer(ctx, report)`,
			New:    `report.ack(); reply := in.answer(ctx, report)`,
			Breaks: "a report over MQTT is acknowledged to the broker before it was handled",
		},
		{
			Package: "devices/mqtt", Func: "Client.watchExcess",
			Old:    `wanted, calm = byte(qosExcess), 0`,
			New:    `calm = 0`,
			Breaks: "devices that report without pause fill the queue of the broker",
		},
		{
			Package: "devices/check", Func: "playOldToken",
			Old:    `newer.Token - 1`,
			New:    `newer.Token + 1`,
			Breaks: "the check of a device does not find that it starts an older token",
		},
		{
			Package: "devices/mqtt", Func: "intake.decodeAndHandle",
			Old:    `refusal.Reply(decoded.ID, `,
			New:    `refusal.Reply("", `,
			Breaks: "a reply over MQTT with an error does not name the report that it answers",
		},
		{
			Package: "devices/mqtt", Func: "intake.receiveReport",
			Old:    `case received.Retained():`,
			New:    `case received.Retained() && len(received.Payload()) == 0:`,
			Breaks: "a report that the broker delivers as retained is handled",
		},
		{
			Package: "devices/mqtt", Func: "Client.stop",
			Old:    `c.intake.stop(ctx), c.outbox.stop(ctx)`,
			New:    `c.outbox.stop(ctx), c.intake.stop(ctx)`,
			Breaks: "the replies to reports in flight are lost at a shutdown",
		},
		{
			Package: "devices/broker", Func: "rules.checkSession",
			Old:    `!r.mayPublish(userName, connectPacket.Connect.WillTopic)`,
			New:    `connectPacket.Connect.WillTopic == ""`,
			Breaks: "a device may publish a report for another device by its will",
		},
		{
			Package: "devices/broker", Func: "isOwnClientID",
			Old:    `strings.HasPrefix(clientID, userName+"/")`,
			New:    `strings.HasPrefix(clientID, userName)`,
			Breaks: "a device may end the session of another device whose id begins with its own id",
		},
		{
			Package: "devices/broker", Func: "Broker.Disconnect",
			Old:    `string(client.Properties.Username) == string(device)`,
			New:    `client.ID == string(device)`,
			Breaks: "a session of a blocked device stays open if its client id is not the device id alone",
		},
		{
			Package: "devices/dynsec", Func: "deviceRole",
			Old:    `devices.ReportTopic(device)`,
			New:    `devices.ReportTopic("+")`,
			Breaks: "a device may report for another device at mosquitto",
		},
		{
			Package: "devices/dynsec", Func: "Client.Set",
			Old:    `enableClientCommand(a.Device, a.Enabled)`,
			New:    `enableClientCommand(a.Device, true)`,
			Breaks: "a new token of a blocked device opens its account at the broker again",
		},
		{
			Package: "internal/simulator", Func: "suspectedBreach.countExcessLeases",
			Old:    `l == nil || l.isInForceAt(s.at, margin)`,
			New:    `l != nil && l.isInForceAt(s.at, margin)`,
			Breaks: "the external system does not count a visitor without a lease against the capacity",
		},
		{
			Package: "internal/simulator", Func: "Comparison.addTask",
			Old:    `successes > 1`,
			New:    `successes > 2`,
			Breaks: "the comparison with the journals does not find a success that was recorded twice",
		},
	}
}
