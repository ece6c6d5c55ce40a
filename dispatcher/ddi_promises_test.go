package dispatcher_test

const (
	sameReport = "cannot: the poll becomes the same report as that of any other device"
	sameResult = "cannot: the end of an action becomes the same result as that of any other device"
)

// ddiDifferences returns the ways in which a device that speaks hawkBit's DDI differs from a device with the dispatcher's protocol. A new
// difference needs a new row.
func ddiDifferences() []difference {
	return []difference{
		{
			name: "it knows neither lease nor token: each request renews its grant, which it may overstay",
			cap:  "TestTheCapHoldsForDDIDevices, TestASilentDDIDeviceLosesItsSlot", task: "TestEachDDIRequestRenewsTheLease, TestTheCapHoldsForDDIDevices",
			result: "TestADDIDeviceWithoutALeaseIsAnOverrun", leak: "TestASilentDDIDeviceLosesItsSlot", fenced: "TestASilentDDIDeviceLosesItsSlot",
			failsClosed: "TestWithoutAServerADDIDeviceGetsNoLink", idle: "TestASilentDDIDeviceLosesItsSlot",
		},
		{
			name: "a number of 32 bits stands for the grant",
			cap:  "cannot: the number is given to a grant that is committed", task: "TestDDIActionsAreNumberedPerDevice, TestAStoppedDDIDeviceIsAskedOnce",
			result: "TestADDIResultIsNotLost", leak: "cannot: a grant ends by its own row", fenced: "TestDDIActionsAreNumberedPerDevice, TestADDIResultIsNotLost",
			failsClosed: "TestDDITokensAreThoseOfTheDevice", idle: "cannot: no number is read before the slot is given",
		},
		{
			name: "it has no journal: a client sends the end of an action until the answer is 200 or 410",
			cap:  sameResult, task: "TestADDIResultIsNotLost", result: "TestADDIResultIsNotLost", leak: "TestSwupdate",
			fenced: "TestADDIResultIsNotLost", failsClosed: "TestADDIResultIsNotLost", idle: "TestASlotOfADDIDeviceGoesOnAtOnce",
		},
		{
			name: "it polls only, and cannot be notified",
			cap:  "TestTheCapHoldsForDDIDevices", task: "TestTheCapHoldsForDDIDevices", result: sameResult, leak: "cannot: no offer is made to it",
			fenced: sameReport, failsClosed: "TestWithoutAServerADDIDeviceGetsNoLink", idle: "TestASlotOfADDIDeviceGoesOnAtOnce",
		},
		{
			name: "a refusal is an answer without a link: obstacles of pool, batch, windows, policies and blocks",
			cap:  sameReport, task: "TestObstaclesGiveADDIDeviceNoLink", result: sameResult, leak: sameReport, fenced: sameReport,
			failsClosed: "TestObstaclesGiveADDIDeviceNoLink, TestWithoutAServerADDIDeviceGetsNoLink", idle: "TestObstaclesGiveADDIDeviceNoLink",
		},
		{
			name: "it has work in several pools, and at most one link",
			cap:  "TestTheCapHoldsForDDIDevices", task: "TestTheCapHoldsForDDIDevices", result: "TestTheCapHoldsForDDIDevices", leak: "TestTheCapHoldsForDDIDevices",
			fenced: "TestDDIActionsAreNumberedPerDevice", failsClosed: sameReport, idle: "TestTheCapHoldsForDDIDevices",
		},
		{
			name: "a stop is an action of its own, which the client may refuse or ignore: cancel, pause with stop_running, block, forced release",
			cap:  "TestAStoppedDDIDeviceIsAskedOnce", task: "TestADDIDeviceIsAskedToStop, TestAStoppedDDIDeviceIsAskedOnce", result: "TestADDIDeviceIsAskedToStop, TestDDITranscripts",
			leak: "TestDDITranscripts", fenced: "TestAStoppedDDIDeviceIsAskedOnce", failsClosed: "cannot: a stop grants nothing", idle: "TestDDITranscripts",
		},
		{
			name: "after a restore the ledger may have lost actions, and a client still works on them",
			cap:  "TestAfterARestoreNoDDINumberComesAgain", task: "TestAfterARestoreNoDDINumberComesAgain", result: "TestAfterARestoreNoDDINumberComesAgain",
			leak: "cannot: grants and slots are restored as those of any other device", fenced: "TestAfterARestoreNoDDINumberComesAgain",
			failsClosed: "TestAfterARestoreNoDDINumberComesAgain", idle: "cannot: nobody is granted a slot during the standstill",
		},
		{
			name: "it reads only some payloads: deployments, and short payloads if its profile allows metadata_only",
			cap:  sameReport, task: "TestATaskThatIsNoDeploymentIsNotSentOverDDI, TestMetadataOnly", result: "TestMetadataOnly", leak: "TestATaskThatIsNoDeploymentIsNotSentOverDDI",
			fenced: sameReport, failsClosed: "TestATaskThatIsNoDeploymentIsNotSentOverDDI", idle: "TestATaskThatIsNoDeploymentIsNotSentOverDDI",
		},
	}
}
